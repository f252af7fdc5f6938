//! The process: its runtime, its provider of cryptography, its signals.

use std::{io, sync::Once};

use rustls::crypto::aws_lc_rs;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

/// Cedar's parser and evaluator recurse, and an overflow aborts the process: it cannot be caught as a panic is. With
/// tokio's 2 MiB a policy of 130 nested brackets suffices; loading refuses more than 64, so this leaves a wide margin.
pub const WORKER_STACK_BYTES: usize = 8 * 1024 * 1024;

/// A runtime whose workers can hold a decision. Installs the provider of cryptography on the way.
pub fn build() -> io::Result<Runtime> {
    install_crypto();
    Builder::new_multi_thread().enable_all().thread_name("cedargate").thread_stack_size(WORKER_STACK_BYTES).build()
}

/// Makes aws-lc-rs the process default. rustls and reqwest panic where they look for a default and find none, so this
/// comes first in `main` and in tests; again is harmless.
pub fn install_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if aws_lc_rs::default_provider().install_default().is_err() {
            tracing::debug!("the process already has a provider of cryptography");
        }
    });
}

/// Ends when kubelet (SIGTERM) or a person at the terminal (SIGINT) asks to stop. The signals are caught from the call
/// on, not from the first await.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("asked to stop (SIGTERM)"),
            _ = interrupt.recv() => tracing::info!("asked to stop (SIGINT)"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_the_stack_that_was_asked_for() {
        // Recursion in Rust frames of a known size: 2 MiB of them, and what a debug
        // build adds, fit into 8 MiB and not into tokio's 2 MiB.
        fn descend(frames: usize) -> usize {
            let frame = std::hint::black_box([frames as u8; 4096]);
            if frames == 0 { usize::from(frame[0]) } else { descend(frames - 1) + usize::from(frame[1] != frame[2]) }
        }
        let runtime = build().expect("builds");
        let sum = runtime.block_on(async { tokio::spawn(async { descend(512) }).await.expect("does not overflow") });
        assert_eq!(sum, 0);
    }
}
