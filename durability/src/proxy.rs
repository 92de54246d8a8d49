//! A TCP proxy on the loopback interface that cuts a connection after a number of bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::scratch::text;

/// The way of the bytes that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

/// A proxy. It cuts once, and lets all connections after that pass.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    passed: [Arc<AtomicU64>; 2],
    has_cut: Arc<AtomicBool>,
}

impl Proxy {
    /// Passes bytes to a port until `limit` of them have gone one way; the rest of that message is lost.
    pub(crate) fn start(server: u16, way: Way, limit: u64) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
        let port = listener.local_addr().map_err(text)?.port();
        let passed = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let has_cut = Arc::new(AtomicBool::new(false));
        let (counts, cut) = (passed.clone(), Arc::clone(&has_cut));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let _ = client.set_nodelay(true);
                let _ = server.set_nodelay(true);
                let (Ok(client_in), Ok(server_in)) = (client.try_clone(), server.try_clone())
                else {
                    continue;
                };
                let ways = [(Way::ToServer, client_in, server), (Way::ToClient, server_in, client)];
                for ((this, from, to), passed) in ways.into_iter().zip(counts.clone()) {
                    let limit = if this == way { limit } else { u64::MAX };
                    let cut = Arc::clone(&cut);
                    std::thread::spawn(move || pass(from, to, limit, &passed, &cut));
                }
            }
        });
        Ok(Self { port, passed, has_cut })
    }

    /// How many bytes went each way: to the server, to the client.
    pub(crate) fn passed(&self) -> [u64; 2] {
        [0, 1].map(|way: usize| self.passed[way].load(Ordering::SeqCst))
    }

    pub(crate) fn has_cut(&self) -> bool {
        self.has_cut.load(Ordering::SeqCst)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, limit: u64, passed: &AtomicU64, cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count) = from.read(&mut bytes) {
        if count == 0 {
            break;
        }
        let before = passed.fetch_add(count as u64, Ordering::SeqCst);
        let left = limit.saturating_sub(before).min(count as u64) as usize;
        let cuts = left < count && !cut.swap(true, Ordering::SeqCst);
        let kept = if cuts { left } else { count };
        if to.write_all(&bytes[..kept]).is_err() || cuts {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
