//! Writes each decision down, one JSON line each, before its answer is sent.
//!
//! ```text
//!  answer --try_write--> queue (bounded in lines and bytes) --> one thread --> stdout or a file
//! ```
//!
//! Nothing that was taken is dropped: while the destination cannot be written, the thread tries again, the queue
//! fills, and whoever must be recorded is told to come back. The replica is not ready meanwhile.
//!
//! Left out on purpose: *rotation*, because kubelet rotates stdout, and a file that is opened for appending can be
//! truncated in place (`copytruncate`); *fsync*, because a line says what the gate answered, and what a node loses in
//! a crash the API server's audit log still has.

use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, Write},
    os::{
        fd::AsFd,
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::{Check, Readiness};

/// How many lines wait at most: some seconds of the heaviest load. What waits is lost with the process.
pub const QUEUE_LINES: usize = 8192;

/// How many bytes wait at most, because a line has no bound of its own.
pub const QUEUE_BYTES: usize = 32 * 1024 * 1024;

/// What is written at once when lines have piled up.
const BATCH_BYTES: usize = 64 * 1024;

/// The pause before a failed write is tried again: soon enough for a full disk that was just freed.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How often a failed write is tried again when the log is being closed.
const CLOSING_TRIES: u32 = 5;

/// A record names people and what they run: nobody but the gate's own user reads it.
const FILE_MODE: u32 = 0o600;

/// The queue's bounds. [`Default`] gives the constants of this module.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub lines: usize,
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { lines: QUEUE_LINES, bytes: QUEUE_BYTES }
    }
}

/// The decision cannot be recorded now. Answer "try again".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue of the decision log is full")]
pub struct LogFull;

/// The log cannot be opened. Give up: without a record the gate must not serve.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open the decision log {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot keep others from reading the decision log {}", path.display())]
    Permissions { path: PathBuf, source: io::Error },
    #[error("cannot write the decision log to stdout")]
    Stdout(#[source] io::Error),
    #[error("cannot start the thread that writes the decision log")]
    Thread(#[source] io::Error),
}

/// Opens a file for appending, readable by its owner alone, also where it existed before with a wider mode. Its
/// directory must exist: one made here would hide a volume that was not mounted.
pub fn file(path: &Path) -> Result<File, OpenError> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .open(path)
        .map_err(|source| OpenError::File { path: path.to_owned(), source })?;
    narrow(&file).map_err(|source| OpenError::Permissions { path: path.to_owned(), source })?;
    Ok(file)
}

fn narrow(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    let is_wide = metadata.permissions().mode() & 0o777 & !FILE_MODE != 0;
    if metadata.is_file() && is_wide {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(())
}

/// Standard output, without the buffer that the standard library puts before it: the thread has its own.
pub fn stdout() -> Result<File, OpenError> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(OpenError::Stdout)
}

/// Starts the thread that writes to `sink`.
pub fn start(
    sink: impl Write + Send + 'static,
    bounds: Bounds,
    readiness: Readiness,
) -> Result<(DecisionLog, Writer), OpenError> {
    let (queue, lines) = channel(bounds.lines);
    let shared = Arc::new(Shared { limit_bytes: bounds.bytes, ..Shared::default() });
    let (ended, end) = sync_channel::<()>(0);
    readiness.pass(Check::DecisionLog);
    let scribe = Scribe { sink, lines, shared: Arc::clone(&shared), readiness, has_given_up: false };
    thread::Builder::new()
        .name("decision-log".to_owned())
        .spawn(move || {
            let _ended = ended; // dropped at the end, whatever the end is
            scribe.run();
        })
        .map_err(OpenError::Thread)?;
    let log = DecisionLog { queue, shared };
    Ok((log.clone(), Writer { log, end }))
}

/// Takes lines. Clones feed the same thread.
#[derive(Debug, Clone)]
pub struct DecisionLog {
    queue: Sender<Entry>,
    shared: Arc<Shared>,
}

impl DecisionLog {
    /// Hands one line, without its newline, to the writer. Never waits. Lines come out in the order they went in.
    pub fn try_write(&self, line: String) -> Result<(), LogFull> {
        debug_assert!(!line.contains('\n'), "a record is one line");
        let taken = self.take(line);
        if taken.is_err() {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    pub fn counts(&self) -> Counts {
        let Shared { written, refused, failed_writes, lost, .. } = &*self.shared;
        let [written, refused, failed_writes, lost] =
            [written, refused, failed_writes, lost].map(|count| count.load(Ordering::Relaxed));
        Counts { written, refused, failed_writes, lost }
    }

    fn take(&self, line: String) -> Result<(), LogFull> {
        let Shared { queued_bytes, limit_bytes, .. } = &*self.shared;
        let bytes = line.len();
        let give_back = || queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > *limit_bytes {
            give_back();
            return Err(LogFull);
        }
        self.queue.try_send(Entry::Line(line)).map_err(|_full_or_closed| {
            give_back();
            LogFull
        })
    }
}

/// For metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Lines that reached the destination.
    pub written: u64,
    /// Lines that found the queue full.
    pub refused: u64,
    /// Writes that failed, each try counted.
    pub failed_writes: u64,
    /// Lines taken and given up when the log was closed while it could not be written.
    pub lost: u64,
}

/// Ends the writing. Dropped without [`Self::close`], it leaves the thread to end with the last [`DecisionLog`].
#[derive(Debug)]
pub struct Writer {
    log: DecisionLog,
    end: std::sync::mpsc::Receiver<()>,
}

impl Writer {
    /// Takes no more lines, writes what waits, and gives how it went. Blocks for `limit` at most: call it outside the
    /// runtime, after the last answer.
    pub fn close(self, limit: Duration) -> Result<Counts, StillWriting> {
        let Self { log, end } = self;
        log.shared.is_closing.store(true, Ordering::Release);
        // Wakes the thread if it sleeps. A full queue means that it does not, and it looks at the mark by itself.
        let _ = log.queue.try_send(Entry::Close);
        match end.recv_timeout(limit) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(log.counts()),
            Err(RecvTimeoutError::Timeout) => Err(StillWriting),
        }
    }
}

/// The destination takes no more. What waits is lost when the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the decision log could not be written out in time")]
pub struct StillWriting;

#[derive(Debug)]
enum Entry {
    Line(String),
    Close,
}

#[derive(Debug, Default)]
struct Shared {
    limit_bytes: usize,
    queued_bytes: AtomicUsize,
    is_closing: AtomicBool,
    written: AtomicU64,
    refused: AtomicU64,
    failed_writes: AtomicU64,
    lost: AtomicU64,
}

/// The thread's side.
struct Scribe<W> {
    sink: W,
    lines: Receiver<Entry>,
    shared: Arc<Shared>,
    readiness: Readiness,
    has_given_up: bool,
}

impl<W: Write> Scribe<W> {
    fn run(mut self) {
        let mut batch = Batch::default();
        while let Some(entry) = self.lines.blocking_recv() {
            self.add(entry, &mut batch);
            while batch.bytes.len() < BATCH_BYTES
                && let Ok(entry) = self.lines.try_recv()
            {
                self.add(entry, &mut batch);
            }
            self.write(&mut batch);
            if self.shared.is_closing.load(Ordering::Acquire) {
                self.lines.close(); // takes no more, and still gives what it holds
            }
        }
    }

    fn add(&self, entry: Entry, batch: &mut Batch) {
        match entry {
            Entry::Line(line) => {
                self.shared.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
                batch.bytes.extend_from_slice(line.as_bytes());
                batch.bytes.push(b'\n');
                batch.lines += 1;
            }
            Entry::Close => {}
        }
    }

    /// Writes the whole batch. After a failure it goes on from the byte where it stopped, so that no line is torn or
    /// written twice.
    fn write(&mut self, batch: &mut Batch) {
        let mut rest = batch.bytes.as_slice();
        let mut tries_left = CLOSING_TRIES;
        while !rest.is_empty() && !self.has_given_up {
            match self.sink.write(rest) {
                Ok(0) => self.fail(&io::ErrorKind::WriteZero.into(), &mut tries_left),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.fail(&error, &mut tries_left),
            }
        }
        let count = if rest.is_empty() { &self.shared.written } else { &self.shared.lost };
        count.fetch_add(batch.lines, Ordering::Relaxed);
        if rest.is_empty() && batch.lines > 0 {
            self.readiness.pass(Check::DecisionLog);
        }
        batch.bytes.clear();
        batch.lines = 0;
    }

    fn fail(&mut self, error: &io::Error, tries_left: &mut u32) {
        self.shared.failed_writes.fetch_add(1, Ordering::Relaxed);
        self.readiness.fail(Check::DecisionLog, format!("cannot be written: {error}"));
        if self.shared.is_closing.load(Ordering::Acquire) {
            *tries_left = tries_left.saturating_sub(1);
            self.has_given_up = *tries_left == 0;
        }
        if !self.has_given_up {
            thread::sleep(RETRY_PAUSE);
        }
    }
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    lines: u64,
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::{Mutex, mpsc},
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// What a test's log was written to. `obstacle` is asked before each write.
    #[derive(Clone)]
    struct Sink {
        written: Arc<Mutex<Vec<u8>>>,
        obstacle: Arc<dyn Fn() -> io::Result<usize> + Send + Sync>,
    }

    impl Sink {
        fn new(obstacle: impl Fn() -> io::Result<usize> + Send + Sync + 'static) -> Self {
            Self { written: Arc::default(), obstacle: Arc::new(obstacle) }
        }

        fn text(&self) -> String {
            String::from_utf8(self.written.lock().expect("not poisoned").clone()).expect("is text")
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let most = (self.obstacle)()?.min(bytes.len());
            self.written.lock().expect("not poisoned").extend_from_slice(&bytes[..most]);
            Ok(most)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn readiness() -> Readiness {
        Readiness::requiring([Check::DecisionLog])
    }

    #[test]
    fn lines_come_out_whole_and_in_order() {
        let sink = Sink::new(|| Ok(7)); // a pipe that takes a few bytes at a time
        let (log, writer) = start(sink.clone(), Bounds::default(), readiness()).expect("starts");
        for number in 0..1000 {
            log.try_write(format!("line {number}")).expect("has room");
        }
        let counts = writer.close(LIMIT).expect("closes");
        assert_eq!(counts, Counts { written: 1000, refused: 0, failed_writes: 0, lost: 0 });
        let expected: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        assert_eq!(sink.text(), expected);
        assert_eq!(log.try_write("late".to_owned()), Err(LogFull), "a closed log takes nothing");
    }

    #[test]
    fn a_full_queue_refuses_and_loses_nothing_it_took() {
        let (entered, has_entered) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (entered, released) = (Mutex::new(entered), Mutex::new(released));
        let sink = Sink::new(move || {
            let _ = entered.lock().expect("not poisoned").send(());
            let _ = released.lock().expect("not poisoned").recv(); // an error is the end of the test: write on
            Ok(usize::MAX)
        });
        let bounds = Bounds { lines: 2, bytes: 100 };
        let (log, writer) = start(sink.clone(), bounds, readiness()).expect("starts");
        log.try_write("one".to_owned()).expect("has room");
        has_entered.recv().expect("the thread writes the first line");
        log.try_write("two".to_owned()).expect("has room");
        log.try_write("three".to_owned()).expect("has room");
        assert_eq!(log.try_write("four".to_owned()), Err(LogFull));
        drop(release);
        let counts = writer.close(LIMIT).expect("closes");
        assert_eq!(counts, Counts { written: 3, refused: 1, failed_writes: 0, lost: 0 });
        assert_eq!(sink.text(), "one\ntwo\nthree\n");
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_too() {
        let bounds = Bounds { lines: 100, bytes: 10 };
        let (log, writer) = start(Sink::new(|| Ok(usize::MAX)), bounds, readiness()).expect("starts");
        assert_eq!(log.try_write("x".repeat(11)), Err(LogFull));
        log.try_write("x".repeat(10)).expect("has room: the refused line gave its bytes back");
        assert_eq!(writer.close(LIMIT).expect("closes").written, 1);
    }

    #[test]
    fn a_failed_write_is_counted_shown_and_tried_again() {
        let failures = AtomicU64::new(2);
        let sink = Sink::new(move || {
            match failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Err(io::ErrorKind::StorageFull.into()),
                Err(_) => Ok(usize::MAX),
            }
        });
        let readiness = readiness();
        let (log, writer) = start(sink.clone(), Bounds::default(), readiness.clone()).expect("starts");
        log.try_write("kept".to_owned()).expect("has room");
        while log.counts().failed_writes == 0 {
            thread::yield_now();
        }
        let counts = writer.close(LIMIT).expect("closes");
        assert_eq!(counts, Counts { written: 1, refused: 0, failed_writes: 2, lost: 0 });
        assert_eq!(sink.text(), "kept\n");
        assert!(readiness.is_ready(), "ready again once it can be written");
    }

    #[test]
    fn a_log_that_cannot_be_written_makes_the_replica_unready_and_still_closes() {
        let readiness = readiness();
        let sink = Sink::new(|| Err(io::ErrorKind::BrokenPipe.into()));
        let (log, writer) = start(sink, Bounds::default(), readiness.clone()).expect("starts");
        for _ in 0..10 {
            log.try_write("lost".to_owned()).expect("has room");
        }
        let counts = writer.close(LIMIT).expect("closes");
        assert_eq!((counts.written, counts.lost), (0, 10));
        let report = readiness.report().to_string();
        assert!(report.contains("[-]decision-log failed: cannot be written: broken pipe"), "{report}");
    }

    #[test]
    fn a_file_is_appended_to_and_closed_to_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("decisions.jsonl");
        fs::write(&path, "before\n").expect("writes");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("widens");

        let (log, writer) = start(file(&path).expect("opens"), Bounds::default(), readiness()).expect("starts");
        log.try_write("after".to_owned()).expect("has room");
        writer.close(LIMIT).expect("closes");

        assert_eq!(fs::read_to_string(&path).expect("reads"), "before\nafter\n");
        assert_eq!(fs::metadata(&path).expect("exists").permissions().mode() & 0o777, FILE_MODE);
    }

    #[test]
    fn a_missing_directory_is_not_made() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = file(&directory.path().join("absent/decisions.jsonl")).expect_err("no directory");
        assert!(error.to_string().starts_with("cannot open the decision log "), "{error}");
        assert!(!directory.path().join("absent").exists());
    }
}
