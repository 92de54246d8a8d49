//! Ledgers on a PostgreSQL server: clients and the server are killed, connections are cut, and nothing is under-charged.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use veilgrad_ledger::{Ledger, Location, Options};

use crate::charge::GRANTED_AFTER_FAILURE;
use crate::crowd::{budget_for, spend, start};
use crate::holds::{PLAN, cost};
use crate::proxy::{Proxy, Way};
use crate::scratch::{
    Directory, Found, Random, charged, open_run, released, round, text, with_budget,
};
use crate::server::Server;

/// The number of rounds of a block.
const BLOCK: u64 = 4;

/// A server with a ledger whose dataset has this budget.
fn begin(name: &str, epsilon: f64) -> Result<Server, String> {
    let server = Server::start(name, &[]).ok_or("PostgreSQL is not installed")?;
    let ledger = Ledger::create(server.ledger("admin"), Options::default()).map_err(text)?;
    with_budget(ledger, epsilon)?;
    Ok(server)
}

/// The address of the ledger for a process that charges.
fn address(port: u16) -> String {
    format!("postgres://trainer@127.0.0.1:{port}/ledger")
}

fn read(server: &Server) -> Result<Ledger, String> {
    Ledger::read(server.ledger("reader"), Options::default()).map_err(text)
}

fn victim(port: u16, out: &Path, rounds: u64) -> Result<Command, String> {
    let mut command = Command::new(std::env::current_exe().map_err(text)?);
    command.args(["charge", &address(port)]).arg(out);
    command.args([rounds.to_string(), BLOCK.to_string()]).stderr(Stdio::null());
    Ok(command)
}

/// The charges of one victim and what it released.
struct Tally {
    points: u64,
    most_over: u64,
}

impl Tally {
    const fn new() -> Self {
        Self { points: 0, most_over: 0 }
    }

    /// Checks that the ledger verifies, and that the rounds charged since `before` cover what the victim released, with at
    /// most one block in addition.
    fn check(&mut self, server: &Server, before: u64, out: &Path, what: &str) -> Found {
        let ledger = read(server).map_err(|error| format!("{what}: {error}"))?;
        ledger.audit().map_err(|error| format!("{what}: {error}"))?;
        let (charged, released) = (charged(&ledger) - before, released(out));
        match charged.checked_sub(released) {
            Some(over) if over <= BLOCK => {
                self.points += 1;
                self.most_over = self.most_over.max(over);
                Ok(())
            }
            _ => Err(format!("{what}: {released} rounds released, {charged} charged")),
        }
    }

    fn print(&self, name: &str, what: &str) {
        println!(
            "postgres-{name}: {} {what}; 0 rounds released without a charge, over-charge at most {} rounds (a block is \
             {BLOCK}), every ledger verified",
            self.points, self.most_over
        );
    }
}

/// 64 clients with plans at once: exactly the plans that fit are granted, and each of them is finished.
pub(crate) fn plans(quick: bool) -> Found {
    let (clients, plans) = (64, if quick { 5 } else { 20 });
    let server = begin("plans", cost(PLAN * plans + PLAN - 1)?)?;
    let directory = Directory::new()?;
    let children: Vec<Child> = (0..clients)
        .map(|number| {
            Command::new(std::env::current_exe().map_err(text)?)
                .args(["plan", &address(server.port)])
                .arg(directory.path().join(format!("begun-{number}")))
                .arg("finish")
                .spawn()
                .map_err(text)
        })
        .collect::<Result<_, String>>()?;
    let (mut whole, mut refused) = (0, 0);
    for mut child in children {
        match child.wait().map_err(text)?.code() {
            Some(0) => whole += 1,
            Some(3) => refused += 1,
            other => return Err(format!("a client ended with {other:?}")),
        }
    }
    let charged = charged(&read(&server)?);
    if (whole, charged) != (plans, plans * PLAN) {
        return Err(format!("{whole} plans granted, {charged} rounds charged, {plans} plans fit"));
    }
    println!(
        "postgres-plans: {clients} clients with plans at once on one budget: {whole} whole plans granted and finished, \
         which is all that fit, {refused} refused before they started"
    );
    Ok(())
}

/// Many clients charge single rounds in bursts, until the budget is spent. A client that is alone for a while charges
/// without the lock, and others then charge at the same time.
pub(crate) fn chargers(quick: bool) -> Found {
    let (processes, at_least) = if quick { (8, 200) } else { (32, 1600) };
    let (budget, granted) = budget_for(at_least)?;
    let server = begin("chargers", budget)?;
    let directory = Directory::new()?;
    let start = |number| {
        start(address(server.port), &directory, "charge-in-bursts", number, ["100000", "1"])
    };
    let children: Vec<Child> = (0..processes).map(start).collect::<Result<_, _>>()?;
    spend(children, &directory, granted, "postgres-chargers", &|| read(&server))
}

/// Kills a client with SIGKILL at every message that it sends or receives.
pub(crate) fn clients(quick: bool) -> Found {
    let server = begin("clients", 1e3)?;
    let directory = Directory::new()?;
    let (rounds, stride) = if quick { (24, 12) } else { (176, 1) };
    let mut tally = Tally::new();
    for call in ["sendto", "recvfrom"] {
        let log = directory.path().join("trace");
        let traced = |injection: Option<u64>, out: &Path| {
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-e", &format!("trace={call}"), "-o"]).arg(&log);
            if let Some(when) = injection {
                command.args(["-e", &format!("inject={call}:signal=KILL:when={when}")]);
            }
            let victim = victim(server.port, out, rounds)?;
            command.arg(victim.get_program()).args(victim.get_args()).stderr(Stdio::null());
            command.status().map_err(|error| format!("strace: {error}"))
        };
        let out = directory.path().join(format!("{call}-undisturbed"));
        if !traced(None, &out)?.success() {
            return Err("an undisturbed client failed".to_owned());
        }
        let trace = std::fs::read_to_string(&log).map_err(text)?;
        let calls = trace.lines().filter(|line| line.contains(&format!("{call}("))).count() as u64;
        for when in (1..=calls).step_by(stride) {
            let before = charged(&read(&server)?);
            let out = directory.path().join(format!("{call}-{when}"));
            let status = traced(Some(when), &out)?;
            let what = format!("killed at {call} number {when}");
            if status.code().is_some_and(|code| code == i32::from(GRANTED_AFTER_FAILURE)) {
                return Err(format!("{what}: a round was granted after a failed charge"));
            }
            // The server may still be committing what the client sent last.
            wait_for_sessions(&server)?;
            tally.check(&server, before, &out, &what)?;
        }
    }
    if !quick && tally.points < 200 {
        return Err(format!("only {} points", tally.points));
    }
    tally.print("clients", "kills of a client, at every message that it sends or receives");
    Ok(())
}

/// Waits until no session of a client is left on the server, so that what it sent is decided.
fn wait_for_sessions(server: &Server) -> Found {
    let start = Instant::now();
    while server.sessions("trainer") > 0 {
        if start.elapsed() > Duration::from_secs(30) {
            return Err("a session did not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Kills all processes of the server with SIGKILL while a client charges, and starts it again.
pub(crate) fn server(quick: bool) -> Found {
    let points = if quick { 8 } else { 210 };
    let server = begin("server", 1e6)?;
    let directory = Directory::new()?;
    let mut random = Random(7);
    let (mut tally, mut went_on) = (Tally::new(), 0);
    for point in 0..points {
        let before = charged(&read(&server)?);
        let out = directory.path().join(format!("out-{point}"));
        let mut child = victim(server.port, &out, 1_000_000)?.spawn().map_err(text)?;
        wait_for(&out, 0)?;
        std::thread::sleep(Duration::from_micros(random.next() % 40_000));
        server.kill();
        let at_kill = released(&out);
        server.start_again();
        // A client whose commit was not answered ends; one that was about to begin a charge connects again.
        let start = Instant::now();
        loop {
            if child.try_wait().map_err(text)?.is_some() {
                break;
            }
            if released(&out) > at_kill + 2 * BLOCK {
                went_on += 1;
                child.kill().map_err(text)?;
                child.wait().map_err(text)?;
                break;
            }
            if start.elapsed() > Duration::from_secs(60) {
                return Err("a client neither ended nor went on".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        wait_for_sessions(&server)?;
        tally.check(&server, before, &out, &format!("server killed, point {point}"))?;
    }
    tally.print(
        "server",
        &format!(
            "kills of the whole server while a client charged ({went_on} clients went on after it)"
        ),
    );
    Ok(())
}

/// Waits until a victim has released more than this.
fn wait_for(out: &Path, more_than: u64) -> Found {
    let start = Instant::now();
    while released(out) <= more_than {
        if start.elapsed() > Duration::from_secs(60) {
            return Err("a client released nothing".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Cuts the connection of a client after every few bytes, both ways.
pub(crate) fn cuts(quick: bool) -> Found {
    let (rounds, points) = if quick { (12, 12) } else { (40, 150) };
    let server = begin("cuts", 1e6)?;
    let directory = Directory::new()?;
    let whole = Proxy::start(server.port, Way::ToServer, u64::MAX)?;
    let out: PathBuf = directory.path().join("undisturbed");
    if !victim(whole.port, &out, rounds)?.status().map_err(text)?.success() {
        return Err("an undisturbed client failed".to_owned());
    }
    let (mut tally, mut went_on) = (Tally::new(), 0);
    for (way, bytes) in [Way::ToServer, Way::ToClient].into_iter().zip(whole.passed()) {
        for point in 0..points {
            let limit = bytes * point / points;
            let before = charged(&read(&server)?);
            let proxy = Proxy::start(server.port, way, limit)?;
            let out = directory.path().join(format!("{way:?}-{point}"));
            let code = victim(proxy.port, &out, rounds)?.status().map_err(text)?.code();
            let what = format!("cut {way:?} after {limit} bytes");
            if !proxy.has_cut() {
                return Err(format!("{what}: it was not"));
            }
            if code == Some(i32::from(GRANTED_AFTER_FAILURE)) {
                return Err(format!("{what}: a round was granted after a failed charge"));
            }
            went_on += u64::from(code == Some(0));
            wait_for_sessions(&server)?;
            tally.check(&server, before, &out, &what)?;
        }
    }
    tally.print(
        "cuts",
        &format!("cuts of a connection ({went_on} clients connected again and finished)"),
    );
    Ok(())
}

/// Durable charges per second, compared with bare commits on the same server, in turns.
pub(crate) fn rate(quick: bool) -> Found {
    let (turns, commits) = if quick { (3, 100) } else { (20, 200) };
    let server = begin("rate", 1e6)?;
    server.sql(
        "owner",
        "ledger",
        "CREATE TABLE bare (bytes bytea); GRANT INSERT ON bare TO trainer",
    );
    let mut bare = server.connect("trainer", "ledger")?;
    let insert = format!("INSERT INTO bare VALUES ('\\x{}')", "07".repeat(400));
    let location = Location::parse(address(server.port));
    let mut run = open_run(Ledger::open(location, Options::default()).map_err(text)?)?;
    let round = round(0.001, 1.0)?;
    let (mut alone, mut one, mut many) = (0.0, 0.0, 0.0);
    for _ in 0..turns {
        let start = Instant::now();
        for _ in 0..commits {
            bare.batch_execute(&insert).map_err(text)?;
        }
        alone += start.elapsed().as_secs_f64();
        for (block, time) in [(1, &mut one), (32, &mut many)] {
            let start = Instant::now();
            for _ in 0..commits {
                drop(run.reserve(&round, block).map_err(text)?);
            }
            *time += start.elapsed().as_secs_f64();
        }
    }
    let all = f64::from(turns * commits);
    let ratio = alone / one;
    println!(
        "postgres-rate: bare commits {:.0}/s; charges of one round {:.0}/s ({ratio:.2} of it); block 32: {:.0} rounds/s",
        all / alone,
        all / one,
        32.0 * all / many
    );
    if !quick && ratio < 0.5 {
        return Err(format!("charges are {ratio:.2} as fast as bare commits"));
    }
    Ok(())
}
