//! What must never happen, and what must happen in the end. Sums are worked out from scratch: nothing here trusts a `Balance`.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Adds, Entry, Ledger, PodSight, Reservation, RootSight, View, Word};
use super::replica::{Sight, Waiting};
use super::setup::{Action, Ask, Mutant, Setup, Uid};
use super::world::{Copy, Phase, Request, State, World};
use crate::amounts::Amounts;

/// What a ledger charges: of roots of one name only one is kept room for, and of pods of one name only the largest exists.
pub(in super::super) fn charged(ledger: &Ledger) -> Amounts {
    let mut total = Amounts::default();
    let mut promised: BTreeMap<(&str, &str, &str, &str), Amounts> = BTreeMap::new();
    let mut bare: BTreeMap<(&str, &str), Amounts> = BTreeMap::new();
    for entry in ledger.entries.values() {
        let Entry { group, kind, namespace, name, .. } = entry;
        let pods = pods(entry);
        let rest = match entry.estimated && !entry.pods.is_empty() {
            true => Amounts::default(),
            false => entry.floor.saturating_sub(&pods),
        };
        let largest = promised.entry((group, kind, namespace, name)).or_default();
        *largest = largest.max(&rest);
        if kind == "Pod" && group.is_empty() {
            let largest = bare.entry((namespace, name)).or_default();
            *largest = largest.max(&pods);
        } else {
            total = total.saturating_add(&pods);
        }
    }
    promised.values().chain(bare.values()).fold(total, |sum, amounts| sum.saturating_add(amounts))
}

fn pods(entry: &Entry) -> Amounts {
    let mut by_name: BTreeMap<&str, Amounts> = BTreeMap::new();
    for pod in entry.pods.values() {
        let largest = by_name.entry(pod.name.as_str()).or_default();
        *largest = largest.max(&pod.amounts);
    }
    by_name.values().fold(Amounts::default(), |sum, pod| sum.saturating_add(pod))
}

impl World {
    /// Law 1: what was admitted and lives is never more than the limit; of a limit that is lowered, the largest so far.
    pub(super) fn check_live(&self, setup: &Setup) -> Result<(), String> {
        let live = self.objects.values().filter(|object| object.admitted && object.runs());
        let live = live.fold(Amounts::default(), |sum, object| sum.saturating_add(&object.amounts));
        let limits = setup.limits.iter().take(self.generation + 1);
        let limit = limits.fold(Amounts::default(), |most, limit| most.max(limit));
        match live.fits_within(&limit) {
            true => Ok(()),
            false => Err(format!("law 1: {live:?} live, above {limit:?}")),
        }
    }

    /// What lives or may come to live by what was told, with what is being told: one pod of a name.
    fn live_and_coming(&self, setup: &Setup, told: &[(Waiting, Word)]) -> Amounts {
        let mut by_name: BTreeMap<String, Amounts> = BTreeMap::new();
        let mut count = |name: String, amounts: &Amounts| {
            let largest = by_name.entry(name).or_default();
            *largest = largest.max(amounts);
        };
        for object in self.objects.values().filter(|object| object.admitted && object.runs()) {
            count(object.name.clone(), &object.amounts);
        }
        for (ask, of) in setup.script.iter().enumerate() {
            let is_told = told.iter().any(|(waiting, word)| {
                waiting.ask == ask && *word == Word::Held && waiting.attempt == self.requests[ask].attempt
            });
            let listens = is_told && self.requests[ask].phase == Phase::Waiting;
            if let Ask::Pod { name, amounts, dry_run: false, .. } = of
                && (listens || self.may_store(setup, ask))
            {
                count(format!("pod-{name}"), amounts);
            }
        }
        by_name.values().fold(Amounts::default(), |sum, amounts| sum.saturating_add(amounts))
    }

    /// Laws 1 and 4, at the swap that counts: with what is held now nothing that can come to live is above the limit of whoever
    /// holds it, the ledger keeps what it is said to keep, and nobody holds by older policies than have decided already.
    pub(super) fn check_held(
        &mut self,
        setup: &Setup,
        index: usize,
        told: &[(Waiting, Word)],
        write: &Ledger,
    ) -> Result<(), String> {
        let holds = |(waiting, word): &&(Waiting, Word)| *word == Word::Held && !waiting.dry_run;
        let held: Vec<&Waiting> = told.iter().filter(holds).map(|(waiting, _)| waiting).collect();
        if held.is_empty() {
            return Ok(());
        }
        let knows = held[0].knows;
        let limit = &setup.limits[knows.1];
        let live = self.live_and_coming(setup, told);
        let adds_pods = held.iter().any(|waiting| matches!(waiting.reservation.adds, Adds::Pod { .. }));
        if adds_pods && !live.fits_within(limit) && setup.limits.len() == 1 {
            return Err(format!("law 1: {live:?} may come to live, above {limit:?}"));
        }
        if let Some(waiting) = held.iter().find(|waiting| !keeps(write, &waiting.reservation)) {
            return Err(format!("law 1: ask {} is told that it is held, and the ledger does not", waiting.ask));
        }
        let mut before = write.clone();
        let stored = self.stored.as_ref().map(|copy| &copy.ledger);
        // Whose pod was stored already was answered by another replica: to enter it again harms nobody.
        let is_answered = |waiting: &Waiting| self.objects.contains_key(&Uid(waiting.ask, waiting.attempt));
        let is_new = |waiting: &&&Waiting| {
            !is_answered(waiting) && !stored.is_some_and(|stored| keeps(stored, &waiting.reservation))
        };
        held.iter().filter(is_new).for_each(|waiting| take_back(&mut before, stored, &waiting.reservation));
        let (before, after) = (charged(&before), charged(write));
        let grown =
            after.iter().find(|(name, sum)| *sum > limit.get(name.as_str()) && *sum > before.get(name.as_str()));
        if let Some((name, sum)) = grown {
            return Err(format!("law 1: the ledger grows to {sum} {name}, above {limit:?}"));
        }
        if !self.replicas[index].has_looked {
            self.fenced.0 = self.fenced.0.min(knows.0);
        }
        self.replicas[index].has_looked = true;
        if knows.0 < self.fenced.0 || knows.1 < self.fenced.1 {
            return Err(format!("law 4: {knows:?} holds after {:?}", self.fenced));
        }
        self.fenced = (self.fenced.0.max(knows.0), self.fenced.1.max(knows.1));
        Ok(())
    }

    /// Law 1: who is told so without a write is in the ledger that is stored.
    pub(super) fn check_held_already(&self, _: &Setup, told: &[(Waiting, Word)]) -> Result<(), String> {
        let stored = self.stored.as_ref().map(|copy| &copy.ledger);
        let unkept = told.iter().find(|(waiting, word)| {
            let over = Uid(waiting.ask, waiting.attempt);
            // A pod whose review comes again after it has ended cannot come to live any more.
            let is_over = self.objects.get(&over).is_some_and(|object| object.is_pod() && !object.runs());
            *word == Word::Held
                && !waiting.dry_run
                && !is_over
                && !stored.is_some_and(|ledger| keeps(ledger, &waiting.reservation))
        });
        match unkept {
            Some((waiting, _)) => Err(format!("law 1: ask {} is told an old ledger's word", waiting.ask)),
            None => Ok(()),
        }
    }

    /// Law 3: whoever is refused would not have fitted when the ledger was read, after it had asked: beside what that ledger
    /// holds and this replica has not been shown to be over, what came past the gate and ran since it asked, and those before
    /// it in its round.
    #[expect(clippy::too_many_arguments, reason = "everything that a round had, to judge it again")]
    pub(super) fn check_refusals(
        &self,
        setup: &Setup,
        index: usize,
        copy: &Copy,
        fresh: bool,
        waiting: &[Waiting],
        words: &[Word],
        written: &Ledger,
        over_before: &BTreeSet<Uid>,
    ) -> Result<(), String> {
        if !words.contains(&Word::Refused) {
            return Ok(());
        }
        if !fresh || self.stored.as_ref() != Some(copy) {
            return Err("law 3: refused by an old ledger".to_owned());
        }
        let view = Sight { objects: &self.objects, sight: &self.replicas[index].sight, setup };
        let mut ledger = copy.ledger.clone();
        for (root, entry) in &mut ledger.entries {
            // What is proved to be lost is let go of, and law 1 watches over that.
            let kept = written.entries.get(root);
            entry.pods.retain(|uid, _| {
                view.pod(uid) != PodSight::Over && kept.is_some_and(|kept| kept.pods.contains_key(uid))
            });
            entry.floor = entry.floor.min(&kept.map(|kept| kept.floor.clone()).unwrap_or_default());
            match view.root(root) {
                RootSight::Over => entry.floor = Amounts::default(),
                RootSight::Stands { floor, generation } if is_stored(generation, entry.generation) => {
                    entry.floor = entry.floor.min(&floor);
                }
                RootSight::Stands { .. } | RootSight::Unknown => {}
            }
        }
        for stray in view.strays(&ledger) {
            if !over_before.contains(&Uid::parse(&stray.uid)) {
                ledger.add(&stray.reservation);
            }
        }
        for (waiting, word) in waiting.iter().zip(words) {
            let before = charged(&ledger);
            let mut with = ledger.clone();
            with.add(&waiting.reservation);
            let after = charged(&with);
            let root = &waiting.reservation.root;
            let promised = ledger.entries.get(root).map(|entry| entry.floor.clone()).unwrap_or_default();
            let needs = match &waiting.reservation.adds {
                Adds::Floor { amounts, .. } => amounts.clone(),
                Adds::Pod { .. } => pods(&with.entries[root]),
            };
            let asked = waiting.reservation.adds.amounts();
            let over = asked.iter().map(|(name, _)| name.as_str()).any(|name| {
                let grows = after.get(name) > before.get(name) || needs.get(name) > promised.get(name);
                grows && after.get(name) > waiting.limit.get(name)
            });
            match word {
                Word::Refused if !over => {
                    return Err(format!("law 3: ask {} is refused beside {before:?}, and fits", waiting.ask));
                }
                Word::Held if !waiting.dry_run => ledger = with,
                Word::Held | Word::Refused | Word::Later(_) => {}
            }
        }
        Ok(())
    }

    /// Law 2: once nobody asks any more and everything is shown, the ledger comes to hold what lives and nothing else; and then
    /// what fits is let in, and no more than that.
    pub(super) fn check_end(&self, setup: &Setup) -> Result<(), String> {
        let mut world = self.clone();
        world.come_to_rest(setup)?;
        let ledger = world.stored.as_ref().map(|copy| copy.ledger.clone()).unwrap_or_default();
        let expected = world.expected();
        let held: BTreeMap<Uid, (Amounts, BTreeSet<Uid>)> = ledger
            .entries
            .iter()
            .map(|(uid, entry)| {
                (Uid::parse(uid), (entry.floor.clone(), entry.pods.keys().map(|uid| Uid::parse(uid)).collect()))
            })
            .collect();
        if held != expected {
            return Err(format!("law 2: the ledger holds {held:?}, and there is {expected:?}"));
        }
        match ledger.settling {
            true => Err("law 2: the ledger settles for ever".to_owned()),
            false => world.check_next(setup),
        }
    }

    /// Everything that is under way ends, everybody lives and knows everything, and time passes.
    fn come_to_rest(&mut self, setup: &Setup) -> Result<(), String> {
        for ask in 0..setup.script.len() {
            let action = match self.requests[ask].phase {
                Phase::Allowed if self.may_store(setup, ask) => Action::Store(ask),
                Phase::Waiting | Phase::Allowed => Action::Fail(ask),
                Phase::New | Phase::Over => continue,
            };
            self.apply(setup, action)?;
        }
        for _ in 0..3 * setup.patience + 4 {
            for index in 0..self.replicas.len() {
                if !self.replicas[index].up {
                    self.apply(setup, Action::Restart(index))?;
                }
                self.replicas[index].knows = (self.policies, self.generation);
                for uid in self.unshown(&self.replicas[index]) {
                    let object = &self.objects[&uid];
                    self.replicas[index].sight.insert(uid, object.history.len());
                }
                let newest = self.stored.clone();
                self.replicas[index].note(newest);
                self.finish_work(setup, index)?;
                if setup.mutant != Some(Mutant::NeverLooks) {
                    self.apply(setup, Action::Tick(index))?;
                }
                self.finish_work(setup, index)?;
            }
            self.apply(setup, Action::Pass)?;
        }
        Ok(())
    }

    fn finish_work(&mut self, setup: &Setup, index: usize) -> Result<(), String> {
        for _ in 0..50 {
            if !self.replicas[index].has_work() {
                return Ok(());
            }
            self.apply(setup, Action::Work(index))?;
        }
        Err(format!("law 2: replica {index} never comes to an end: {:?}", self.replicas[index].job))
    }

    /// What the ledger should hold: of each root, what it needs as it is stored, and its pods that run.
    fn expected(&self) -> BTreeMap<Uid, (Amounts, BTreeSet<Uid>)> {
        let mut expected: BTreeMap<Uid, (Amounts, BTreeSet<Uid>)> = BTreeMap::new();
        for (uid, object) in &self.objects {
            match object.state() {
                State::Runs { .. } => {
                    expected.entry(object.root.unwrap_or(*uid)).or_default().1.insert(*uid);
                }
                State::Stands { floor, .. } if !floor.is_empty() => {
                    expected.entry(*uid).or_default().0 = floor.clone();
                }
                State::Stands { .. } | State::Finished | State::Gone => {}
            }
        }
        expected
    }

    /// What is left is given, and one more is not.
    fn check_next(&self, setup: &Setup) -> Result<(), String> {
        let limit = &setup.limits[self.generation];
        let used = charged(&self.stored.as_ref().map(|copy| copy.ledger.clone()).unwrap_or_default());
        for (resource, most) in limit.iter() {
            let free = most.saturating_sub(used.get(resource.as_str()));
            for (amount, fits) in [(free, true), (free + 1, false)] {
                if amount == 0 {
                    continue;
                }
                let mut setup = setup.clone();
                let amounts = Amounts::of(resource.clone(), amount);
                setup.script.push(Ask::Pod { root: None, name: 99, amounts, dry_run: false });
                let mut world = self.clone();
                let ask = setup.script.len() - 1;
                world.requests.push(Request { phase: Phase::New, born: 0, attempt: 0, base: 0, generation: None });
                let to = ask % world.replicas.len();
                world.apply(&setup, Action::Send(ask, to))?;
                world.finish_work(&setup, to)?;
                let is_held = world.requests[ask].phase == Phase::Allowed;
                if is_held != fits {
                    return Err(format!("law 2: {amount} {resource} beside {used:?} of {limit:?}: held {is_held}"));
                }
            }
        }
        Ok(())
    }
}

fn is_stored(stored: Option<i64>, raised: Option<i64>) -> bool {
    stored.zip(raised).is_some_and(|(stored, raised)| stored >= raised)
}

fn keeps(ledger: &Ledger, Reservation { root, adds, .. }: &Reservation) -> bool {
    let Some(entry) = ledger.entries.get(root) else { return adds.amounts().is_empty() };
    match adds {
        Adds::Floor { amounts, .. } => amounts.fits_within(&entry.floor),
        Adds::Pod { uid, pod } => entry.pods.get(uid) == Some(pod),
    }
}

/// As if it had not been held.
fn take_back(ledger: &mut Ledger, stored: Option<&Ledger>, Reservation { root, adds, .. }: &Reservation) {
    let Some(entry) = ledger.entries.get_mut(root) else { return };
    match adds {
        Adds::Floor { .. } => {
            let before = stored.and_then(|stored| stored.entries.get(root)).map(|entry| entry.floor.clone());
            entry.floor = entry.floor.min(&before.unwrap_or_default());
        }
        Adds::Pod { uid, .. } => drop(entry.pods.remove(uid)),
    }
}
