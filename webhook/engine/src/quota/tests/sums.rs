//! Sums that are kept up to date against sums worked out from scratch.

use std::slice::from_ref;

use proptest::prelude::*;

use super::super::model::charged;
use super::super::{Adds, Balance, Entry, HeldPod, Ledger, Reservation, Usage};
use crate::amounts::{Amounts, ResourceName};
use crate::vocabulary::Class;

fn amounts(gpus: u64, efa: u64) -> Amounts {
    [("nvidia.com/gpu", gpus), ("vpc.amazonaws.com/efa", efa)]
        .into_iter()
        .map(|(name, amount)| (ResourceName::new(name), amount))
        .collect()
}

/// A bare pod.
pub(super) fn pod(uid: &str, name: &str, gpus: u64) -> Reservation {
    let pod = HeldPod { name: name.to_owned(), amounts: amounts(gpus, 0) };
    let adds = Adds::Pod { uid: uid.to_owned(), pod };
    Reservation { root: uid.to_owned(), entry: Entry::new("Pod", "ns", name, Class::Pod), adds }
}

fn job(name: &str) -> Entry {
    Entry { group: "batch".to_owned(), ..Entry::new("Job", "ns", name, Class::Training) }
}

fn pod_of(root: &str, job_name: &str, uid: &str, name: &str, gpus: u64) -> Reservation {
    Reservation { root: root.to_owned(), entry: job(job_name), ..pod(uid, name, gpus) }
}

fn floor(root: &str, job_name: &str, gpus: u64) -> Reservation {
    let adds = Adds::Floor { amounts: amounts(gpus, 0), generation: Some(1) };
    Reservation { root: root.to_owned(), entry: job(job_name), adds }
}

fn balance(reservations: &[Reservation]) -> Balance {
    let mut balance = Balance::default();
    reservations.iter().for_each(|reservation| balance.add(reservation));
    balance
}

fn used(reservations: &[Reservation]) -> u64 {
    balance(reservations).used().get("nvidia.com/gpu")
}

#[test]
fn pods_draw_on_what_their_root_keeps() {
    assert_eq!(used(&[floor("r", "job", 4)]), 4);
    assert_eq!(used(&[floor("r", "job", 4), pod_of("r", "job", "a", "job-0", 3)]), 4);
    assert_eq!(
        used(&[floor("r", "job", 4), pod_of("r", "job", "a", "job-0", 3), pod_of("r", "job", "b", "job-1", 3)]),
        6
    );
}

#[test]
fn of_one_name_only_one_exists() {
    assert_eq!(used(&[pod("a", "pod", 2), pod("b", "pod", 3), pod("c", "pod", 1)]), 3);
    assert_eq!(used(&[pod("a", "pod", 2), pod("b", "other", 3)]), 5);
    assert_eq!(used(&[pod_of("r", "job", "a", "job-0", 2), pod_of("r", "job", "b", "job-0", 2)]), 2);
    // Kept is only one of the roots, but the pods of an earlier one may still end.
    assert_eq!(used(&[floor("r", "job", 4), floor("s", "job", 2)]), 4);
    assert_eq!(used(&[floor("r", "job", 4), floor("s", "job", 4), pod_of("r", "job", "a", "job-0", 4)]), 8);
}

#[test]
fn an_estimate_gives_way_to_pods() {
    let mut estimate = floor("r", "job", 8);
    estimate.entry.estimated = true;
    assert_eq!(used(&[estimate.clone()]), 8);
    assert_eq!(used(&[estimate, pod_of("r", "job", "a", "job-0", 1)]), 1);
}

#[test]
fn what_is_asked_about() {
    let gpu = |usages: Vec<Usage>| usages.first().map(|usage| (usage.used, usage.after));
    let of = |held: &[Reservation], asked: &Reservation| gpu(balance(held).growth(asked, |_| true));
    let job = floor("r", "job", 4);
    let own = |uid: &str, gpus| pod_of("r", "job", uid, uid, gpus);
    assert_eq!(of(&[], &job), Some((0, 4)));
    assert_eq!(of(from_ref(&job), &job), None, "again");
    assert_eq!(of(from_ref(&job), &own("a", 4)), None, "promised");
    assert_eq!(of(&[job.clone(), own("a", 3)], &own("b", 2)), Some((4, 5)), "beyond the promise");
    assert_eq!(of(&[own("a", 4)], &job), Some((4, 4)), "pods end, and a promise stays");
    assert_eq!(of(&[pod("a", "pod", 2)], &pod("b", "pod", 2)), Some((2, 2)), "the earlier one of that name ends");
    assert_eq!(of(&[pod("a", "pod", 2)], &pod("a", "pod", 2)), None, "the same review again");
    assert_eq!(gpu(balance(&[]).growth(&job, |_| false)), None, "not counted");
}

#[test]
fn each_request_for_a_floor_leaves_its_mark() {
    let asks = |generation| {
        let mut asks = floor("r", "job", 4);
        asks.adds = Adds::Floor { amounts: amounts(2, 0), generation };
        asks
    };
    let mut ledger = Ledger::default();
    let mut mark = |reservation: &Reservation| {
        ledger.add(reservation);
        let entry = &ledger.entries["r"];
        (entry.floor.get("nvidia.com/gpu"), entry.generation, entry.asked)
    };
    assert_eq!(mark(&floor("r", "job", 4)), (4, Some(1), 1));
    assert_eq!(mark(&asks(Some(3))), (4, Some(3), 2), "a smaller size lowers nothing");
    assert_eq!(mark(&asks(Some(2))), (4, Some(3), 3), "of two under way the later decides");
    assert_eq!(mark(&asks(None)), (4, None, 4), "through `scale` nobody says");
}

#[test]
fn another_persons_edit_takes_the_person_away() {
    let by = |person: &str, gpus| {
        let mut asks = floor("r", "job", gpus);
        asks.entry.person = Some(person.to_owned());
        asks
    };
    let person = |reservations: &[Reservation]| balance(reservations).ledger().entries["r"].person.clone();
    assert_eq!(person(&[by("ada", 1), by("ada", 2)]), Some("ada".to_owned()));
    assert_eq!(person(&[by("ada", 1), by("bob", 2)]), None);
    assert_eq!(person(&[by("ada", 1), by("bob", 2), by("ada", 3)]), None);
}

/// Few roots, names, pods and persons, so that they meet.
fn any_reservation() -> impl Strategy<Value = Reservation> {
    let who = prop::option::of(prop::sample::select(vec!["ada", "bob"]));
    let root = (0..5_u8, 0..3_u8, prop::bool::ANY, who);
    let adds = (prop::bool::ANY, 0..6_u8, 0..4_u8, 0..4_u64, 0..3_u64, prop::option::of(1..4_i64));
    (root, adds).prop_map(|((root, name, estimated, who), (is_floor, uid, pod_name, gpus, efa, generation))| {
        // A root is of one kind and has one name.
        let is_bare = root == 0;
        let class = if root % 2 == 0 { Class::Training } else { Class::Space };
        let mut entry = match is_bare {
            true => Entry::new("Pod", "ns", &format!("pod-{pod_name}"), Class::Pod),
            false => Entry::new("Job", "ns", &format!("job-{}", (root + name) % 3), class),
        };
        entry.group = if is_bare { String::new() } else { "batch".to_owned() };
        entry.person = who.map(str::to_owned);
        entry.estimated = estimated && !is_bare;
        let uid = format!("pod-{root}-{uid}");
        let root = if is_bare { uid.clone() } else { format!("root-{root}-{name}") };
        let amounts = amounts(gpus, efa);
        let adds = match is_floor && !is_bare {
            true => Adds::Floor { amounts, generation },
            false => Adds::Pod { uid, pod: HeldPod { name: format!("pod-{pod_name}"), amounts } },
        };
        Reservation { root, entry, adds }
    })
}

fn reservations() -> impl Strategy<Value = Vec<Reservation>> {
    prop::collection::vec(any_reservation(), 0..24)
}

proptest! {
    #[test]
    fn sums_are_those_of_the_ledger(reservations in reservations()) {
        let mut balance = Balance::default();
        for reservation in &reservations {
            balance.add(reservation);
            prop_assert_eq!(balance.used(), charged(balance.ledger()));
        }
        let ledger = balance.into_ledger();
        prop_assert_eq!(Balance::from(ledger.clone()).used(), charged(&ledger));
    }

    #[test]
    fn growth_is_the_difference_it_makes(held in reservations(), asked in any_reservation()) {
        let balance = balance(&held);
        let mut with = balance.ledger().clone();
        with.add(&asked);
        let (before, after) = (charged(balance.ledger()), charged(&with));
        let usages = balance.growth(&asked, |_| true);
        for Usage { resource, used, after: then, class_after, person_after, person_class_after } in &usages {
            let name = resource.as_str();
            prop_assert_eq!((*used, *then), (before.get(name), after.get(name)));
            prop_assert!(class_after <= then);
            prop_assert!(person_after.is_none_or(|of_person| of_person <= *then));
            prop_assert!(person_class_after.is_none_or(|of_both| of_both <= *class_after && Some(of_both) <= *person_after));
            prop_assert_eq!(person_after.is_some(), asked.entry.person.is_some());
        }
        for (resource, _) in after.iter().filter(|(name, sum)| *sum > before.get(name.as_str())) {
            prop_assert!(usages.iter().any(|usage| usage.resource == *resource), "{resource} grows unseen");
        }
    }

    #[test]
    fn by_class_and_person_where_no_two_roots_share_a_name(reservations in reservations(), asked in any_reservation()) {
        let own_name = |mut reservation: Reservation| {
            reservation.entry.name.clone_from(&reservation.root);
            reservation
        };
        let held: Vec<Reservation> = reservations.into_iter().map(own_name).collect();
        let asked = own_name(asked);
        let mut with = balance(&held).into_ledger();
        let usages = Balance::from(with.clone()).growth(&asked, |_| true);
        with.add(&asked);
        let sum = |counts: &dyn Fn(&Entry) -> bool, resource: &str| -> u64 {
            with.entries.values().filter(|entry| counts(entry)).map(|entry| entry.charge().get(resource)).sum()
        };
        let Entry { class, person, .. } = &asked.entry;
        for usage in usages {
            let name = usage.resource.as_str();
            prop_assert_eq!(usage.class_after, sum(&|entry| entry.class == *class, name));
            if person.is_some() {
                prop_assert_eq!(usage.person_after, Some(sum(&|entry| entry.person == *person, name)));
                let both = sum(&|entry| entry.person == *person && entry.class == *class, name);
                prop_assert_eq!(usage.person_class_after, Some(both));
            }
        }
    }

    #[test]
    fn twice_is_once(held in reservations(), asked in any_reservation()) {
        let mut once = balance(&held);
        once.add(&asked);
        let mut twice = once.clone();
        prop_assert_eq!(twice.growth(&asked, |_| true), vec![]);
        twice.add(&asked);
        prop_assert_eq!(once.used(), twice.used());
        let without_marks = |balance: Balance| {
            let mut ledger = balance.into_ledger();
            ledger.entries.values_mut().for_each(|entry| entry.asked = 0);
            ledger
        };
        prop_assert_eq!(without_marks(once), without_marks(twice));
    }

    #[test]
    fn a_ledger_is_read_back_as_it_was_written(held in reservations()) {
        let ledger = balance(&held).into_ledger();
        let written = serde_json::to_value(&ledger).expect("a ledger");
        prop_assert_eq!(serde_json::from_value::<Ledger>(written).expect("the same"), ledger);
    }
}
