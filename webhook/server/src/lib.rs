//! Puts a decision behind TLS: connections, bounds, health, drain and the decision log.
//!
//! ```text
//!  API server --TLS--> listen --> http --> Decide          whoever decides; panics and lateness stay inside
//!                        |          |         |
//!      drain: phases ----+          |      Answered { review, line }
//!                                   +--line--> decision_log --> stdout or a file
//!                                   |
//!  kubelet ----------> /readyz <----+-- readiness <-- certificate, policies, state, decision log, drain
//! ```
//!
//! [`cluster`] keeps the state that is decided on, and [`policy_directory`] the policies; [`Server`] needs neither.
//!
//! [`Server::run`] serves until the future it is given ends, and returns when the last answer is out:
//!
//! ```no_run
//! # use std::{error::Error, path::Path, sync::Arc, time::Duration};
//! # use certs::{Resolver, UnixTime};
//! # use server::*;
//! # fn start<D: Decide>(decider: D, certificates: &Path) -> Result<(), Box<dyn Error>> {
//! let readiness = Readiness::requiring([Check::Certificate, Check::Policies, Check::State]);
//! let (log, writer) = decision_log::start(decision_log::stdout()?, Default::default(), readiness.clone())?;
//! runtime::build()?.block_on(async {
//!     let resolver = Arc::new(Resolver::new(certs::files::read(certificates)?, UnixTime::now())?);
//!     tokio::spawn(certificate::follow(
//!         certificates.to_owned(), Arc::clone(&resolver), readiness.clone(), certificate::LOOK_EVERY,
//!     ));
//!     let server = Server {
//!         listener: tokio::net::TcpListener::bind("[::]:8443").await?,
//!         tls: listen::tls(resolver)?,
//!         gate: Gate::new(Arc::new(decider), Some(log), readiness.clone(), Default::default()),
//!         bounds: Default::default(),
//!         drain: Default::default(),
//!     };
//!     server.run(runtime::shutdown_signal()?).await;
//!     Ok::<_, Box<dyn Error>>(())
//! })?;
//! writer.close(Duration::from_secs(5))?;
//! # Ok(())
//! # }
//! ```

mod body;
pub mod certificate;
pub mod cluster;
pub mod deadline;
pub mod decide;
pub mod decider;
pub mod decision_log;
pub mod drain;
pub mod http;
pub mod ledger;
pub mod listen;
pub mod metrics;
pub mod policy_directory;
pub mod readiness;
pub mod runtime;
mod serve;

pub use decide::{Answered, Decide, Endpoint, Line, Refusal};
pub use decision_log::DecisionLog;
pub use http::Gate;
pub use readiness::{Check, Readiness};
pub use serve::Server;
