//! Manifests as the field publishes them, with their placeholders filled in.

use crate::gate;

/// The documents of a file of `webhook/engine/testdata/manifests`.
pub fn documents(file: &str) -> Vec<serde_json::Value> {
    let path = gate::repository().join("webhook/engine/testdata/manifests").join(file);
    gate::documents(&filled_in(file, &gate::read(&path)))
}

/// Fills in `$NAME` and `${NAME}` of a template, as its README would have somebody do.
pub fn filled_in(file: &str, text: &str) -> String {
    if !file.contains(".tmpl.") {
        return text.to_owned();
    }
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        let braced = after.strip_prefix('{');
        let name: &str = braced.unwrap_or(after);
        let end = name.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_').unwrap_or(name.len());
        filled.push_str(value_of(file, &name[..end]));
        rest = &name[end + usize::from(braced.is_some())..];
    }
    filled + rest
}

fn value_of(file: &str, name: &str) -> &'static str {
    match (name, file) {
        ("ACCEL_INSTANCE_COUNT", _) => "4",
        ("GPU_PER_NODE" | "EFA_PER_NODE", "ado-hyperpodpytorchjob-1b.tmpl.yaml") => "1",
        ("ACCEL_INSTANCE_TYPE", _) => "ml.g5.8xlarge",
        ("INSTANCE_TYPE", "adt-pytorchjob-neuron-peft.tmpl.yaml") => "ml.trn1.32xlarge",
        ("INSTANCE_TYPE", _) => "ml.p5.48xlarge",
        ("EFA_PER_NODE", _) => "8",
        ("NEURON_PER_NODE", _) => "16",
        ("NEURON_CORES" | "NUM_EFA_PER_NODE", _) => "32",
        ("NUM_NODES", _) => "2",
        ("NUM_GPU_PER_NODE", _) => "8",
        ("HEAD_CPU" | "WORKER_CPU", _) => "4",
        ("HEAD_MEMORY" | "WORKER_MEMORY", _) => "16Gi",
        ("FI_EFA_USE_DEVICE_RDMA", _) => "1",
        ("FSX_CAPACITY_GIB", _) => "1200",
        ("FSX_FILESYSTEM_ID", _) => "fs-0123456789abcdef0",
        ("FSX_DNS_NAME", _) => "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        ("FSX_MOUNT_NAME", _) => "abcdef01",
        ("FSX_CLAIM", _) => "fsx-pvc-hyperpod-ns-team-a",
        ("NAMESPACE" | "TEAM_A_NAMESPACE", _) => "hyperpod-ns-team-a",
        ("TEAM_B_NAMESPACE", _) => "hyperpod-ns-team-b",
        ("REGISTRY", _) => "111122223333.dkr.ecr.us-west-2.amazonaws.com/",
        ("IMAGE", _) => "trainer",
        ("IMAGE_URI", _) => "111122223333.dkr.ecr.us-west-2.amazonaws.com/neuron:2.21",
        ("TAG", _) => "v1",
        ("WS_USER", _) => "alice",
        // Arguments of the program: no reader looks at them.
        (
            "HF_TOKEN" | "NEURON_CACHE_DIR" | "MODEL_OUTPUT_PATH" | "DATASET_NAME" | "MAX_SEQ_LENGTH"
            | "CHECKPOINT_DIR" | "EPOCHS" | "MAX_TRAINING_STEPS" | "TRAIN_BATCH_SIZE" | "LEARNING_RATE" | "TP_SIZE",
            _,
        ) => "1",
        (name, file) => unreachable!("{file}: what is {name}?"),
    }
}
