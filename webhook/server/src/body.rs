//! Reads a request's body within bounds of size, time and memory.

use std::{future::poll_fn, pin::pin, sync::Arc};

use axum::body::{Body, Bytes, HttpBody};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// The most that one review may be. The API server takes objects of up to 3 MiB (etcd of 1.5 MiB), an UPDATE carries
/// the object twice, and escaping lengthens it.
pub(crate) const BODY_LIMIT_BYTES: usize = 8 * 1024 * 1024;

/// The most that all bodies held at once may take: a replica that dies of memory drops every review it holds. Room
/// for 16 of the largest, or tens of thousands of ordinary ones of 5 KiB.
pub(crate) const BODIES_LIMIT_BYTES: usize = 128 * 1024 * 1024;

/// How much of an oversized body is read and thrown away. A connection closed on unread bytes is reset, and the
/// caller would see that instead of the sentence which says what was wrong.
const DISCARD_LIMIT_BYTES: usize = 2 * BODY_LIMIT_BYTES;

/// What is reserved before a byte has come, whatever the caller announces.
const FIRST_RESERVATION_BYTES: usize = 16 * 1024;

/// A body and its share of the memory for bodies.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) bytes: Bytes,
    pub(crate) share: Option<OwnedSemaphorePermit>,
}

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    TooLarge,
    TooLate,
    /// The memory for bodies is taken.
    Overloaded,
    /// The caller broke off.
    Broken,
}

pub(crate) async fn read(
    body: Body,
    limit_bytes: usize,
    memory: &Arc<Semaphore>,
    deadline: Instant,
) -> Result<Held, Unread> {
    timeout_at(deadline, collect(body, limit_bytes, memory)).await.unwrap_or(Err(Unread::TooLate))
}

/// Memory is taken as bytes come, not as they are announced: an announcement costs its sender nothing.
async fn collect(body: Body, limit_bytes: usize, memory: &Arc<Semaphore>) -> Result<Held, Unread> {
    let mut body = pin!(body);
    let mut collected = Vec::with_capacity(FIRST_RESERVATION_BYTES.min(limit_bytes));
    let mut share: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|_| Unread::Broken)?.into_data() else {
            continue;
        }; // trailers say nothing to us
        if collected.len() + data.len() > limit_bytes {
            drop((collected, share));
            discard(body).await;
            return Err(Unread::TooLarge);
        }
        let more = take(memory, data.len())?;
        match &mut share {
            Some(share) => share.merge(more),
            None => share = Some(more),
        }
        collected.extend_from_slice(&data);
    }
    Ok(Held { bytes: collected.into(), share })
}

fn take(memory: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, Unread> {
    let bytes = u32::try_from(bytes).map_err(|_| Unread::TooLarge)?;
    Arc::clone(memory).try_acquire_many_owned(bytes).map_err(|_| Unread::Overloaded)
}

async fn discard(mut body: std::pin::Pin<&mut Body>) {
    let mut discarded = 0;
    while let Some(Ok(frame)) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > DISCARD_LIMIT_BYTES {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn read_within(bytes: usize, limit_bytes: usize, memory_bytes: usize) -> Result<Held, Unread> {
        let memory = Arc::new(Semaphore::new(memory_bytes));
        let deadline = Instant::now() + Duration::from_secs(60);
        read(Body::from(vec![b'x'; bytes]), limit_bytes, &memory, deadline).await
    }

    #[tokio::test]
    async fn the_limit_itself_is_allowed() {
        assert_eq!(read_within(10, 10, 10).await.map(|held| held.bytes.len()).ok(), Some(10));
        assert_eq!(read_within(0, 10, 10).await.map(|held| held.bytes.len()).ok(), Some(0));
        assert_eq!(read_within(11, 10, 100).await.err(), Some(Unread::TooLarge));
        assert_eq!(read_within(10, 10, 9).await.err(), Some(Unread::Overloaded));
    }

    #[tokio::test]
    async fn a_body_gives_its_share_back() {
        let memory = Arc::new(Semaphore::new(10));
        let deadline = Instant::now() + Duration::from_secs(60);
        let held = read(Body::from("12345"), 10, &memory, deadline).await.expect("reads");
        assert_eq!(memory.available_permits(), 5);
        drop(held);
        assert_eq!(memory.available_permits(), 10);
    }
}
