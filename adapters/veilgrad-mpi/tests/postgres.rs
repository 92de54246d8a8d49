//! Ranks with a ledger on PostgreSQL, on a real server that the test starts.
#![cfg(feature = "postgres")]

#[path = "../../../crates/veilgrad-ledger/tests/server/mod.rs"]
mod server;

use std::path::Path;
use std::process::Command;

use server::Server;
use veilgrad_ledger::{Ledger, Location, Options};

#[test]
fn two_ranks_charge_a_ledger_on_postgresql() {
    let Some(server) = Server::start("ranks", &[]) else { return };
    let place = std::env::temp_dir().join(format!("veilgrad-mpi-postgres-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let text = std::fs::read_to_string(examples.join("tabular.toml")).unwrap();
    let table = examples.join("tabular/visits.csv").canonicalize().unwrap();
    let text = text.replace("tabular/visits.csv", &table.display().to_string());
    let config = place.join("tabular.toml");
    std::fs::write(&config, text.replace("rounds = 100", "rounds = 10")).unwrap();
    let ledger = format!("postgres://admin:s3cret@127.0.0.1:{}/ledger", server.port);

    let output = Command::new("mpirun")
        .args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"])
        .args(["--mca", "btl_vader_single_copy_mechanism", "none", "-n", "2"])
        .arg(env!("CARGO_BIN_EXE_veilgrad-mpi"))
        .arg("train")
        .arg(&config)
        .args(["--ledger", &ledger, "--out"])
        .arg(place.join("run"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    assert!(place.join("run/model.safetensors").exists());

    let ledger = Ledger::read(Location::parse(&ledger), Options::default()).unwrap();
    let runs = ledger.state().find("tabular").unwrap().runs.values();
    assert_eq!(runs.map(|run| run.charged()).sum::<u64>(), 10);
    std::fs::remove_dir_all(place).unwrap();
}
