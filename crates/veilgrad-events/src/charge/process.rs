//! The identity of the current process, so that forked copies are recognised.

/// The identity of a process, different from that of every process forked from it.
///
/// A fork copies permits, samples, noise and keys. Everything that must be used only once stores the identity
/// of the process that made it, and is refused where [`is_current`](Self::is_current) is false.
///
/// # Guarantee
/// On Linux: an identity taken before a fork differs from the identity of the child, of its children and of
/// every later process, even if the process ids are equal. (In a new pid namespace parent and child can both be
/// process 1, and ids are reused.)
///
/// Proof: an identity holds the kernel's start time of the process, in ticks of 10 ms, and is returned only after
/// that tick is over. A fork made after that starts in a later tick. (A new time namespace may shift the child's
/// ticks; its process id would have to be equal as well.)
///
/// If the start time cannot be read, there is no identity, and everything that needs one fails. Other systems
/// have no pid namespaces; there the process id alone is the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    id: u32,
    start: u64,
}

/// The identity of this process cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "forked copies of this process cannot be recognised, because its start time cannot be \
     read from /proc/self/stat ({0}); mount /proc"
)]
pub struct UnknownProcess(String);

impl ProcessIdentity {
    /// The identity of this process. The first call in a process sleeps for 10 ms.
    ///
    /// # Errors
    /// When the start time of this process cannot be read.
    pub fn current() -> Result<Self, UnknownProcess> {
        let identity = Self::now()?;
        start::wait_for_next_tick(identity.start);
        Ok(identity)
    }

    /// Whether this is the identity of the current process; false if that cannot be determined.
    #[must_use]
    pub fn is_current(&self) -> bool {
        Self::now().is_ok_and(|now| now == *self)
    }

    fn now() -> Result<Self, UnknownProcess> {
        Ok(Self { id: id(), start: start::tick()? })
    }
}

#[cfg(not(target_family = "wasm"))]
fn id() -> u32 {
    std::process::id()
}

/// WebAssembly has neither process ids nor forks.
#[cfg(target_family = "wasm")]
const fn id() -> u32 {
    0
}

/// The start time of this process.
#[cfg(target_os = "linux")]
mod start {
    use std::io::Read as _;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::UnknownProcess;

    /// The kernel shows times in units of 1/USER_HZ, and USER_HZ is 100 on every architecture that
    /// Rust runs on.
    const TICK: Duration = Duration::from_millis(10);

    /// Enough for the first 22 fields: at most 20 digits each, and a name of at most 64 bytes.
    const STATUS_BYTES: usize = 1024;

    /// The tick in which this process started: field 22 of /proc/self/stat (proc(5)).
    pub(super) fn tick() -> Result<u64, UnknownProcess> {
        let mut bytes = [0; STATUS_BYTES];
        // One read returns the whole status; reading to the end would take a second system call.
        let length = std::fs::File::open("/proc/self/stat")
            .and_then(|mut file| file.read(&mut bytes))
            .map_err(|error| UnknownProcess(error.to_string()))?;
        let status = bytes.get(..length).unwrap_or(&bytes);
        parse_start_time(status).ok_or_else(|| UnknownProcess("it has no start time".to_owned()))
    }

    /// Waits once per process until the tick in which it started is over.
    pub(super) fn wait_for_next_tick(start: u64) {
        // One more than the tick that was waited for. In a forked child it still holds the parent's value.
        static WAITED: AtomicU64 = AtomicU64::new(0);
        if WAITED.load(Ordering::Relaxed) != start.wrapping_add(1) {
            std::thread::sleep(TICK);
            WAITED.store(start.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The start time in a status line: the twentieth field after the program's name, which is in parentheses
    /// and may contain any byte.
    fn parse_start_time(status: &[u8]) -> Option<u64> {
        let end = status.iter().rposition(|byte| *byte == b')')?;
        let fields = str::from_utf8(status.get(end + 1..)?).ok()?;
        fields.split_ascii_whitespace().nth(19)?.parse().ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_start_time_is_found_behind_any_name() {
            let fields: String = (3..53).map(|number| format!(" {number}")).collect();
            for name in ["veilgrad", "", "a b", ") R 1 2 3", "a) 22 (b", "\n)\n"] {
                let status = format!("1 ({name}){fields}\n");
                assert_eq!(parse_start_time(status.as_bytes()), Some(22), "{name:?}");
            }
            for broken in ["", "1 (name", "1 (name) R 1 2", "1 (name) R"] {
                assert_eq!(parse_start_time(broken.as_bytes()), None, "{broken}");
            }
            let negative = fields.replace(" 22 ", " -22 ");
            assert_eq!(parse_start_time(format!("1 (name){negative}").as_bytes()), None);
        }
    }
}

/// On other systems the process id alone is the identity.
#[cfg(not(target_os = "linux"))]
mod start {
    use super::UnknownProcess;

    #[allow(clippy::unnecessary_wraps)]
    pub(super) const fn tick() -> Result<u64, UnknownProcess> {
        Ok(0)
    }

    pub(super) const fn wait_for_next_tick(_start: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_stays_itself_on_all_its_threads() {
        let identity = ProcessIdentity::current().unwrap();
        assert!(identity.is_current());
        assert_eq!(ProcessIdentity::current(), Ok(identity));
        let on_a_thread = std::thread::spawn(ProcessIdentity::current).join().unwrap();
        assert_eq!(on_a_thread, Ok(identity));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_identity_with_the_same_number_and_another_start_is_another_process() {
        let identity = ProcessIdentity::current().unwrap();
        let earlier = ProcessIdentity { start: identity.start - 1, ..identity };
        assert!(!earlier.is_current());
    }
}
