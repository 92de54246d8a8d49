//! Which process this is, so that forked copies are recognised.

/// A running process, told apart from every process that is forked from it.
///
/// A fork copies permits, samples, noise and keys. Whatever must not be used twice keeps the identity
/// of the process that made it and is refused wherever [`is_current`](Self::is_current) is false.
///
/// # Guarantee
/// On Linux: an identity that was taken before a fork is not the identity of the child, of its
/// children, or of any later process, whatever their process ids are: in a new pid namespace parent
/// and child can both be number 1, and numbers are used again.
///
/// Proof: an identity holds the time at which the kernel started the process, in ticks of 10 ms, and
/// is given out only after that tick is over. A copy of the process is started later still, so its
/// tick is a later one. (A new time namespace may shift the child's ticks; the process id would have
/// to agree as well.)
///
/// Where the time cannot be read, there is no identity and nothing that needs one. Other systems
/// have no pid namespaces; there the process id alone is the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    id: u32,
    start: u64,
}

/// The operating system does not say which process this is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "forked copies of this process cannot be recognised, because its start time cannot be \
     read from /proc/self/stat ({0}); mount /proc"
)]
pub struct UnknownProcess(String);

impl ProcessIdentity {
    /// The identity of this process. In the first 10 ms of a process the first call waits for them to pass.
    ///
    /// # Errors
    /// When the operating system does not say which process this is.
    pub fn current() -> Result<Self, UnknownProcess> {
        let identity = Self::now()?;
        start::wait_for_next_tick(identity.start);
        Ok(identity)
    }

    /// Whether this is the process that took the identity; false if the system does not say.
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

/// When this process was started.
#[cfg(target_os = "linux")]
mod start {
    use std::io::Read as _;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::UnknownProcess;

    /// The kernel shows times in units of 1/USER_HZ, and USER_HZ is 100 on every architecture that
    /// Rust runs on.
    const TICK: Duration = Duration::from_millis(10);

    /// Twenty-two fields of at most 20 digits and a name of at most 64 bytes come before the end of
    /// what is needed.
    const ENOUGH: usize = 1024;

    /// The tick in which the kernel started this process: field 22 of its status (proc(5)).
    pub(super) fn tick() -> Result<u64, UnknownProcess> {
        let mut bytes = [0; ENOUGH];
        // One read gives all of it, and is half the price of reading to the end.
        let length = std::fs::File::open("/proc/self/stat")
            .and_then(|mut file| file.read(&mut bytes))
            .map_err(|error| UnknownProcess(error.to_string()))?;
        let status = bytes.get(..length).unwrap_or(&bytes);
        parse(status).ok_or_else(|| UnknownProcess("it has no start time".to_owned()))
    }

    /// Waits once per process until the tick in which it was started is over.
    pub(super) fn wait_for_next_tick(start: u64) {
        /// One more than the tick that was waited for; a forked child finds its parent's here.
        static WAITED: AtomicU64 = AtomicU64::new(0);
        if WAITED.load(Ordering::Relaxed) != start.wrapping_add(1) {
            std::thread::sleep(TICK);
            WAITED.store(start.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The start time in a status: the twentieth field after the program's name, which stands in
    /// parentheses and may hold any byte.
    fn parse(status: &[u8]) -> Option<u64> {
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
                assert_eq!(parse(format!("1 ({name}){fields}\n").as_bytes()), Some(22), "{name:?}");
            }
            for broken in ["", "1 (name", "1 (name) R 1 2", "1 (name) R"] {
                assert_eq!(parse(broken.as_bytes()), None, "{broken}");
            }
            let negative = fields.replace(" 22 ", " -22 ");
            assert_eq!(parse(format!("1 (name){negative}").as_bytes()), None);
        }
    }
}

/// Elsewhere the process id says it all.
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
