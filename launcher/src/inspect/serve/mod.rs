//! `tandem-queue serve`: the snapshots' numbers for Prometheus, over plain HTTP.
//!
//! One request after the other, each with a deadline: a client that dawdles holds nobody up for long. It answers
//! `GET /metrics`; which runs there are is looked up at each request.

#[cfg(test)]
mod dashboard;
mod exposition;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::exit::{Blame, Fault};
use common::queue::Snapshot;

use super::{list, segment};

/// A request's head at most.
const HEAD_BYTES: usize = 8192;
/// The longest that one client may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves one run, or all runs of this machine, until the process is ended.
///
/// # Errors
/// The address cannot be listened at.
pub(super) fn serve(run: Option<&str>, address: &str) -> Result<(), Fault> {
    let segment = run.map(segment).transpose()?;
    let listener = TcpListener::bind(address);
    let listener = listener.map_err(|error| format!("{address}: {error}")).your_input("choose another --listen")?;
    let shown = listener.local_addr().our_failure("the system does not say where it listens")?;
    crate::command::print(&format!("serving http://{shown}/metrics\n"))?;
    for client in listener.incoming() {
        // A client that went away, or sent nonsense, is its own trouble alone.
        let _ = client.and_then(|client| answer(client, segment.as_deref()));
    }
    Ok(())
}

fn answer(mut client: TcpStream, segment: Option<&str>) -> io::Result<()> {
    let head = read_head(&mut client)?;
    let mut words = head.split(' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics" | "/")) => ("200 OK", exposition::text(&snapshots(segment)?)),
        (Some("GET"), _) => ("404 Not Found", "see /metrics\n".into()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".into()),
    };
    client.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    let kind = exposition::CONTENT_TYPE;
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    client.write_all((head + &body).as_bytes())
}

/// The request's head, as far as its end or [`HEAD_BYTES`].
fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") && head.len() < HEAD_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        // A timeout of zero would be none at all.
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match client.read(&mut part)? {
            0 => break,
            count => head.extend_from_slice(&part[..count]),
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// A run that has ended is no failure: there is nothing to show of it, then.
fn snapshots(segment: Option<&str>) -> io::Result<Vec<Snapshot>> {
    match segment {
        Some(segment) => Ok(Snapshot::read(segment).into_iter().collect()),
        None => Ok(list()?.into_iter().filter_map(|queue| queue.snapshot).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// What a client gets for these bytes.
    fn ask(request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || answer(listener.accept().unwrap().0, Some("tandem-no-such-run")));
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        server.join().unwrap().unwrap();
        response
    }

    #[test]
    fn metrics_are_got_and_nothing_else() {
        let response = ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(response.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{response}");
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        assert!(ask("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    }

    #[test]
    fn a_head_without_an_end_is_cut() {
        assert!(ask(&"x".repeat(HEAD_BYTES)).starts_with("HTTP/1.1 405 "));
    }
}
