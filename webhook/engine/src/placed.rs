//! Where a trusted part of the cluster has put work: the node selectors and tolerations that Kueue adds to a template when it
//! lets a job start. They are nobody's wish, so nobody is asked about them: not when they are added, and not when the
//! pods come that carry them.
//!
//! ```text
//!  Kueue: UPDATE of a Job --/mutate--> what its template has now and had not before, noted on the Job
//!  job-controller: CREATE of a Pod --> asked as the submitter, about the placement less what is noted on its owners
//! ```
//!
//! What the submitter wrote is asked about each time, as ever. The note is the gate's own key: people can neither write one
//! nor take one away, and what is older than the gate has none that counts. It holds keys and not values, as policies do;
//! so it ends when anybody else changes where the work goes.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::StoredObject;
use crate::facts::{PodTemplate, Workload};
use crate::json;
use crate::stamp;

/// Keys of node labels and of taints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placed {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub node_selectors: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tolerations: BTreeSet<String>,
}

impl Placed {
    pub fn is_empty(&self) -> bool {
        let Self { node_selectors, tolerations } = self;
        node_selectors.is_empty() && tolerations.is_empty()
    }

    /// What is noted on an object.
    pub fn of(object: &Value) -> Self {
        let noted = json::text(object, &["metadata", "annotations", stamp::PLACED]);
        noted.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// What is noted on any of these owners.
    pub fn on_the_way<'a>(chain: impl Iterator<Item = &'a StoredObject>) -> Self {
        chain.map(|owner| Self::of(&owner.object)).fold(Self::default(), Self::and)
    }

    fn and(self, other: Self) -> Self {
        Self {
            node_selectors: &self.node_selectors | &other.node_selectors,
            tolerations: &self.tolerations | &other.tolerations,
        }
    }

    /// What is to be noted after an update: what it added, and of what was noted what is still there.
    pub fn after(noted: Self, old: &Workload, new: &Workload) -> Self {
        let (before, now) = (Self::in_templates(old), Self::in_templates(new));
        Self {
            node_selectors: now
                .node_selectors
                .into_iter()
                .filter(|key| !before.node_selectors.contains(key) || noted.node_selectors.contains(key))
                .collect(),
            tolerations: now
                .tolerations
                .into_iter()
                .filter(|key| !before.tolerations.contains(key) || noted.tolerations.contains(key))
                .collect(),
        }
    }

    fn in_templates(workload: &Workload) -> Self {
        let keys =
            |of: fn(&PodTemplate) -> &BTreeSet<String>| workload.templates.iter().flat_map(of).cloned().collect();
        Self {
            node_selectors: keys(|template| &template.node_selectors),
            tolerations: keys(|template| &template.tolerations),
        }
    }

    /// A template without it.
    pub fn left_out<'t>(&self, template: &'t PodTemplate) -> Cow<'t, PodTemplate> {
        if self.is_empty() {
            return Cow::Borrowed(template);
        }
        Cow::Owned(PodTemplate {
            node_selectors: &template.node_selectors - &self.node_selectors,
            tolerations: &template.tolerations - &self.tolerations,
            ..template.clone()
        })
    }
}
