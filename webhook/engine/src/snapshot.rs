//! Everything a decision reads beside the review itself, frozen.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::config::Config;
use crate::policies::Policies;
use crate::team::Teams;

/// One consistent view. Cheap to clone; whoever holds it decides on the same world to the end.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub config: Arc<Config>,
    pub teams: Arc<Teams>,
    pub policies: Arc<Policies>,
    pub cluster: Arc<Cluster>,
}
