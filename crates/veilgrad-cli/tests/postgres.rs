//! The commands with a ledger on PostgreSQL, on a real server that the test starts.
#![cfg(feature = "postgres")]

#[path = "../../veilgrad-ledger/tests/server/mod.rs"]
mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use server::Server;

/// A temporary directory, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("veilgrad-postgres-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn veilgrad(directory: &Path, words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_veilgrad"))
        .args(words)
        .current_dir(directory)
        .env_remove("PGPASSWORD")
        .env("VEILGRAD_HOST", "test-host")
        .output()
        .unwrap();
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains("s3cret"), "{words:?} printed a password: {text}");
    output
}

fn succeed(directory: &Path, words: &[&str]) -> String {
    let output = veilgrad(directory, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

const CONFIG: &str = r#"
[data]
train = "data.csv"
label = "y"
classes = ["0", "1"]
records = 60
dataset = "people"

[[data.columns]]
name = "a"
bounds = [0, 1]

[[data.columns]]
name = "b"
bounds = [0, 1]

[model]
kind = "linear"

[privacy]
epsilon = 3.0
delta = 1e-5
expected_batch = 20

[train]
rounds = 6
block = 2
optimizer = { kind = "sgd", lr = 0.1 }
"#;

#[test]
fn the_main_job_and_all_commands_of_a_ledger_work_on_a_server_and_show_no_password() {
    let Some(server) = Server::start("cli", &[]) else { return };
    server.write(
        "pg_hba.conf",
        "host all owner 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
    );
    server.pg_ctl(&["reload"]);
    let directory = Directory::new("job");
    let here = directory.0.as_path();
    let port = server.port;
    let admin = format!("postgres://admin:s3cret@127.0.0.1:{port}/ledger");
    let trainer = format!("postgres://trainer:s3cret@127.0.0.1:{port}/ledger");
    let reader = format!("postgres://reader@127.0.0.1:{port}/ledger?password=s3cret");
    // A wrong argument does not repeat an address.
    assert!(!veilgrad(here, &["budget", "show", "people", &admin]).status.success());
    assert!(!veilgrad(here, &["budget", "show", "people", "--leger", &admin]).status.success());
    let create = ["budget", "create", "people", "--epsilon", "4", "--delta", "1e-5", "--ledger"];
    let refused = veilgrad(here, &[&create[..], &[trainer.as_str()]].concat());
    assert_eq!(refused.status.code(), Some(4));
    succeed(here, &[&create[..], &[admin.as_str()]].concat());

    let mut data = "a,b,y\n".to_owned();
    for i in 0..60 {
        data.push_str(&format!("{},{},{}\n", (i % 7) as f64 / 7.0, (i % 5) as f64 / 5.0, i % 2));
    }
    std::fs::write(here.join("data.csv"), data).unwrap();
    std::fs::write(here.join("config.toml"), CONFIG).unwrap();
    succeed(here, &["check", "config.toml", "--ledger", &trainer]);
    succeed(here, &["train", "config.toml", "--out", "run", "--ledger", &trainer]);
    for name in ["report.json", "report.html", "statement.txt"] {
        let text = std::fs::read_to_string(here.join("run").join(name)).unwrap();
        assert!(!text.contains("s3cret"), "{name} has a password");
    }
    // The second run does not fit.
    let again = veilgrad(here, &["train", "config.toml", "--out", "two", "--ledger", &trainer]);
    assert_eq!(again.status.code(), Some(3));

    succeed(here, &["statement", "run", "--ledger", &reader]);
    succeed(here, &["statement", &reader]);
    succeed(here, &["account", &reader, "--delta", "1e-5"]);
    succeed(here, &["budget", "show", "people", "--ledger", &reader]);
    assert!(succeed(here, &["ledger", "list", &reader]).contains("by trainer on test-host"));
    succeed(here, &["ledger", "backup", &reader, "backup.db"]);
    let head = succeed(here, &["ledger", "head", &reader]);
    let moved = succeed(here, &["ledger", "move", &admin, "moved.db"]);
    assert!(moved.contains(head.trim()), "{moved}");
    assert!(
        succeed(here, &["ledger", "verify", "moved.db", "--against", head.trim()])
            .contains("verified")
    );
    let export = succeed(here, &["ledger", "export", &reader]);
    assert_eq!(export, succeed(here, &["ledger", "export", "moved.db"]));
    assert_eq!(
        veilgrad(here, &["budget", "tighten", "people", "--epsilon", "1", "--ledger", &admin])
            .status
            .code(),
        Some(4)
    );
    assert!(succeed(here, &["ledger", "migration"]).contains("CREATE SCHEMA veilgrad"));
}
