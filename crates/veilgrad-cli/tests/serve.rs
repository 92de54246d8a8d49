//! `serve` answers this machine's user alone, and changes nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::common::{Directory, config, files, ok, refused, table};
use serde_json::Value;

struct Server {
    process: Child,
    port: u16,
    token: String,
}

impl Server {
    fn start(directory: &str) -> Self {
        let mut process = crate::common::command(&["serve", directory, "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let found: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(found["schema"], 1);
        let url = found["url"].as_str().unwrap();
        let port = found["port"].as_u64().unwrap() as u16;
        let token = url.strip_prefix(&format!("http://127.0.0.1:{port}/")).unwrap();
        Self { process, port, token: token.trim_end_matches('/').to_owned() }
    }

    /// The status, the headers and the body of an answer.
    fn ask(&self, method: &str, host: &str, target: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        write!(stream, "{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    fn get(&self, rest: &str) -> (u16, String, String) {
        let host = format!("127.0.0.1:{}", self.port);
        self.ask("GET", &host, &format!("/{}/{rest}", self.token))
    }

    fn json(&self, rest: &str) -> Value {
        let (status, _, body) = self.get(rest);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Ends it as Ctrl-C does, and returns the exit code.
    fn stop(mut self) -> Option<i32> {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        self.process.wait().unwrap().code()
    }
}

#[test]
fn ledgers_and_reports_are_shown_and_not_changed() {
    let directory = Directory::new("serve");
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(&directory, 4, ""), directory.file("out"));
    ok(&["train", &config, "--out", &out, "--quiet"]);
    let sorted = || {
        let mut all = files(&directory.0.join("out"));
        // SQLite may leave an index in shared memory and an empty log, as after any command that reads a ledger.
        let is_sqlite = |name: &str, bytes: &[u8]| {
            name.ends_with("-shm") || (name.ends_with("-wal") && bytes.is_empty())
        };
        all.retain(|(path, bytes)| !is_sqlite(&path.display().to_string(), bytes));
        all.sort();
        all
    };
    let before = sorted();
    let server = Server::start(&directory.0.display().to_string());
    let listed = server.json("files");
    let file = |place: usize, key: &str| listed["files"][place][key].as_str().unwrap().to_owned();
    assert_eq!(listed["files"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!((file(0, "name"), file(0, "kind")), ("out/ledger.db".into(), "ledger".into()));
    assert_eq!((file(1, "name"), file(1, "kind")), ("out/report.json".into(), "report".into()));
    let budget = server.json(&format!("ledger/{}", file(0, "id")));
    assert_eq!(
        (&budget["rows"][0]["dataset"], &budget["rows"][0]["budget"]),
        (&"toy".into(), &"2".into())
    );
    let (status, head, page) = server.get(&format!("report/{}", file(1, "id")));
    assert!(status == 200 && page.contains("<h1>Privacy report: toy</h1>"), "{page}");
    assert!(head.contains("default-src 'none'") && !head.contains("script-src"), "{head}");
    // A report whose ledger is gone is labelled.
    for name in ["ledger.db", "ledger.db.anchor"] {
        std::fs::rename(format!("{out}/{name}"), directory.file(name)).unwrap();
    }
    let (_, _, page) = server.get(&format!("report/{}", file(1, "id")));
    assert!(page.contains("NOT COMPUTED AGAIN"), "{page}");
    assert_eq!(server.get(&format!("ledger/{}", file(0, "id"))).0, 404);
    for name in ["ledger.db", "ledger.db.anchor"] {
        std::fs::rename(directory.file(name), format!("{out}/{name}")).unwrap();
    }
    assert_eq!(server.stop(), Some(0));
    let names = |all: &[(std::path::PathBuf, Vec<u8>)]| {
        all.iter().map(|(path, _)| path.display().to_string()).collect::<Vec<_>>()
    };
    let after = sorted();
    assert_eq!(names(&after), names(&before));
    assert!(after == before, "a file was changed");
}

#[test]
fn strangers_are_refused_and_no_path_leads_out() {
    let directory = Directory::new("serve-guard");
    std::fs::write(directory.file("secret.txt"), crate::common::MARKER).unwrap();
    let server = Server::start(&directory.0.display().to_string());
    let (host, page) = (format!("127.0.0.1:{}", server.port), format!("/{}/", server.token));
    let (status, head, body) = server.ask("GET", &host, &page);
    assert!(status == 200 && body.contains("<h1>Privacy planner</h1>"), "{head}");
    for header in [
        "Content-Security-Policy: default-src 'none'",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "X-Content-Type-Options: nosniff",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert_eq!(server.ask("GET", &host, "/").0, 403);
    assert_eq!(server.ask("GET", &host, &format!("/{}/", "0".repeat(64))).0, 403);
    assert_eq!(server.ask("GET", "evil.example", &page).0, 421);
    assert_eq!(server.ask("GET", &format!("evil.example:{}", server.port), &page).0, 421);
    assert_eq!(server.ask("POST", &host, &page).0, 405);
    for path in [
        "secret.txt",
        "../secret.txt",
        "report/../secret.txt",
        "report/secret.txt",
        "ledger/%2e%2e/secret.txt",
        "report/",
    ] {
        let (status, _, body) = server.get(path);
        assert!(status == 404 && !body.contains(crate::common::MARKER), "{path}");
    }
    // The loopback interface alone: another address of this machine is not listened on.
    let other = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), server.port));
    assert!(TcpStream::connect(other).is_err());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_plan_is_the_one_of_the_command() {
    let directory = Directory::new("serve-plan");
    let server = Server::start(&directory.0.display().to_string());
    let words =
        "plan --records 60000 --batch 256 --steps 14040 --delta 1e-5 --noise-multiplier 1.1 --json";
    let printed: Value = serde_json::from_str(&ok(&words.split(' ').collect::<Vec<_>>())).unwrap();
    let query = "plan?records=60000&batch=256&steps=14040&delta=1e-5&noise-multiplier=1.1";
    assert_eq!(server.json(query)["plan"], printed);
    assert!(server.json("plan?delta=2")["reason"].as_str().unwrap().contains("delta"));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn what_cannot_be_served_is_an_error() {
    let directory = Directory::new("serve-errors");
    refused(&["serve", &directory.file("nowhere")], 2, "is not a directory");
    refused(&["serve", "--port", "70000"], 2, "70000");
    let server = Server::start(&directory.0.display().to_string());
    let port = server.port.to_string();
    refused(&["serve", "--port", &port, &directory.0.display().to_string()], 1, &port);
    assert_eq!(server.stop(), Some(0));
}
