//! Tells each Team what it holds, for `kubectl get teams`: by its ledger, or by what Kueue says of its queue. A field manager of its own: the rest of the status is the
//! governor's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::quota::Balance;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::ledgers::KubeLedgers;
use super::publish::State;
use super::team_object;
use super::{ApiServer, chain};

/// Our name in `managedFields`, for what is used.
pub const FIELD_MANAGER: &str = "cedargate-usage";

/// For people who look, not for decisions; a burst is told once.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Tells for ever.
pub async fn tell(api_server: ApiServer, ledgers: Arc<KubeLedgers>, state: Arc<State>) {
    let api: Api<DynamicObject> = Api::all_with(api_server.client(), &team_object::resource());
    loop {
        // Replicas take turns by chance, and whoever comes second finds it said.
        tokio::time::sleep(TELL_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        for (team, used) in news(&ledgers, &state) {
            let patch = json!({
                "apiVersion": team_object::resource().api_version,
                "kind": team_object::KIND,
                "status": {"used": used},
            });
            let told = api.patch_status(&team, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(patch)).await;
            if let Err(error) = told {
                tracing::debug!(team, error = chain(&error), "cannot tell what a Team uses");
            }
        }
    }
}

/// Teams whose status says something else.
fn news(ledgers: &KubeLedgers, state: &State) -> BTreeMap<String, String> {
    let said: BTreeMap<String, Option<String>> =
        state.index().governance().teams.into_iter().map(|team| (team.name, team.status.used)).collect();
    let mut used: BTreeMap<String, String> =
        ledgers.all().into_iter().map(|(team, ledger)| (team, text(ledger))).collect();
    // Whatever a ledger still says of a team that has gone over to Kueue.
    used.extend(state.index().queued());
    let used = used.into_iter();
    used.filter(|(team, used)| said.get(team).is_some_and(|said| said.as_ref() != Some(used))).collect()
}

fn text(ledger: engine::quota::Ledger) -> String {
    let used = Balance::from(ledger).used();
    let amounts: Vec<String> = used.iter().map(|(resource, amount)| format!("{resource} {amount}")).collect();
    if amounts.is_empty() { "nothing".to_owned() } else { amounts.join(", ") }
}
