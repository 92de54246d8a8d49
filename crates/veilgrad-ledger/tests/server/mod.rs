//! A PostgreSQL server of its own for each test, on the loopback interface, in a temporary directory.
#![allow(dead_code)] // Not every test uses all of it.

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use veilgrad_ledger::{Location, MIGRATION};

/// A running server, stopped on drop.
pub(crate) struct Server {
    directory: PathBuf,
    pub(crate) port: u16,
    user: Option<u32>,
}

/// The directory of the server's programs, which Debian does not put into the path.
fn programs() -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = installed.map(|version| version.path().join("bin")).collect();
    found.push("/usr/local/bin".into());
    found.push("/usr/bin".into());
    found.into_iter().find(|bin| bin.join("initdb").exists() && bin.join("pg_ctl").exists())
}

/// Whether a process is there and has not ended.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}

/// The number of a user without rights, for a test that root runs: the server refuses root.
fn unprivileged() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    (uid.split_whitespace().nth(1) == Some("0")).then_some(65534)
}

impl Server {
    /// Starts a server with the tables of a ledger; `None` if PostgreSQL is not installed, which CI does not accept.
    pub(crate) fn start(name: &str, settings: &[&str]) -> Option<Self> {
        let Some(programs) = programs() else {
            assert!(std::env::var_os("CI").is_none(), "PostgreSQL is not installed");
            return None;
        };
        let name = format!("veilgrad-server-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let user = unprivileged();
        if let Some(user) = user {
            chown(&directory, Some(user), None).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Self { directory, port, user };
        server.program(
            &programs.join("initdb"),
            &["-U", "owner", "-A", "trust", "--no-sync", "-E", "UTF8"],
        );
        let mut text = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 100\n"
        );
        settings.iter().for_each(|setting| text.push_str(&format!("{setting}\n")));
        let data = server.data();
        let config = data.join("postgresql.conf");
        let old = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{old}\n{text}")).unwrap();
        server.pg_ctl(&["start", "-w", "-l", "log"]);
        server.sql("owner", "postgres", "CREATE DATABASE ledger");
        server.sql("owner", "ledger", MIGRATION);
        for (role, group) in [
            ("admin", "veilgrad_administer"),
            ("trainer", "veilgrad_charge"),
            ("reader", "veilgrad_read"),
        ] {
            let text = format!("CREATE ROLE {role} LOGIN PASSWORD 's3cret' IN ROLE {group}");
            server.sql("owner", "ledger", &text);
        }
        server.sql("owner", "ledger", "CREATE ROLE stranger LOGIN");
        Some(server)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn program(&self, program: &Path, arguments: &[&str]) {
        let mut command = Command::new(program);
        command.args(arguments).arg("-D").arg(self.data()).current_dir(&self.directory);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(status.success(), "{} {arguments:?}", program.display());
    }

    pub(crate) fn pg_ctl(&self, arguments: &[&str]) {
        self.program(&programs().unwrap().join("pg_ctl"), arguments);
    }

    /// Writes a file that only the server's user may read, such as a key.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        if let Some(user) = self.user {
            chown(&path, Some(user), Some(user)).unwrap();
        }
    }

    /// Runs statements as a role.
    pub(crate) fn sql(&self, role: &str, database: &str, statements: &str) {
        self.try_sql(role, database, statements).unwrap();
    }

    /// A connection of a role.
    pub(crate) fn connect(&self, role: &str, database: &str) -> Result<postgres::Client, String> {
        let mut config = postgres::Config::new();
        config.user(role).host("127.0.0.1").port(self.port).dbname(database);
        config.connect(postgres::NoTls).map_err(|error| error.to_string())
    }

    /// How many sessions a role has.
    pub(crate) fn sessions(&self, role: &str) -> i64 {
        let mut client = self.connect("owner", "postgres").unwrap();
        let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
        client.query_one(count, &[&role]).unwrap().get(0)
    }

    /// Kills all processes of the server.
    pub(crate) fn kill(&self) {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let first = file.lines().next().unwrap().to_owned();
        let children = format!("/proc/{first}/task/{first}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let mut all = vec![first.as_str()];
        all.extend(children.split_whitespace());
        let status = Command::new("kill").arg("-KILL").args(&all).stderr(Stdio::null()).status();
        status.unwrap();
        // Until all have ended, the server would not start again.
        while all.iter().any(|pid| is_running(pid)) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Starts the server again after it was killed.
    pub(crate) fn start_again(&self) {
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
        self.pg_ctl(&["start", "-w", "-l", "log"]);
    }

    pub(crate) fn try_sql(
        &self,
        role: &str,
        database: &str,
        statements: &str,
    ) -> Result<(), String> {
        let mut client = self.connect(role, database)?;
        client.batch_execute(statements).map_err(|error| match error.as_db_error() {
            Some(server) => server.message().to_owned(),
            None => error.to_string(),
        })
    }

    /// The ledger, as a role sees it.
    pub(crate) fn ledger(&self, role: &str) -> Location {
        Location::parse(format!("postgres://{role}@127.0.0.1:{}/ledger", self.port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(programs) = programs() {
            let mut command = Command::new(programs.join("pg_ctl"));
            command.args(["stop", "-m", "immediate", "-D"]).arg(self.data()).current_dir("/");
            if let Some(user) = self.user {
                command.uid(user).gid(user);
            }
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
