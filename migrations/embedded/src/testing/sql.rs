//! A small client for the housekeeping of test servers: simple queries over loopback, password sent as it is.
//!
//! Creating and dropping databases must not need psql, which some packages lack, nor make every test crate wait
//! for a big client library. It knows just what that takes: no TLS, no SCRAM, no COPY, no parameters.

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::TestError;
use crate::cluster::SUPERUSER;

/// The rows of a query: text, or `None` for null.
pub type Rows = Vec<Vec<Option<String>>>;

const PROTOCOL_3_0: i32 = 196_608;
/// Nothing that a housekeeping query returns comes near it; a larger length means that we lost step.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

pub(super) struct Session {
    stream: BufReader<TcpStream>,
}

impl Session {
    pub(super) fn connect(port: u16, password: &str, database: &str) -> Result<Self, TestError> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream: BufReader::new(stream) };
        let mut startup = PROTOCOL_3_0.to_be_bytes().to_vec();
        for text in ["user", SUPERUSER, "database", database, "application_name", "tidegate-test", ""] {
            startup.extend_from_slice(text.as_bytes());
            startup.push(0);
        }
        session.send(None, &startup)?;
        loop {
            let (kind, body) = session.receive()?;
            match kind {
                b'R' => match be_i32(&body, 0)? {
                    0 => {}
                    3 => session.send(Some(b'p'), &[password.as_bytes(), &[0]].concat())?,
                    other => return Err(protocol(format!("authentication method {other}"))),
                },
                b'Z' => return Ok(session),
                b'E' => return Err(server_error(&body)),
                _ => {}
            }
        }
    }

    /// Runs one or more statements; the rows are those of all of them.
    pub(super) fn query(&mut self, sql: &str) -> Result<Rows, TestError> {
        self.send(Some(b'Q'), &[sql.as_bytes(), &[0]].concat())?;
        let mut rows = Rows::new();
        let mut failure = None;
        loop {
            let (kind, body) = self.receive()?;
            match kind {
                b'D' => rows.push(data_row(&body)?),
                b'E' => failure = Some(server_error(&body)),
                b'Z' => return failure.map_or(Ok(rows), Err),
                b'G' | b'H' | b'W' => return Err(protocol("COPY in a housekeeping query".to_owned())),
                _ => {}
            }
        }
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        let length = i32::try_from(body.len() + 4).map_err(io::Error::other)?;
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(body);
        self.stream.get_mut().write_all(&message)
    }

    fn receive(&mut self) -> Result<(u8, Vec<u8>), TestError> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = usize::try_from(be_i32(&head, 1)?).unwrap_or(0);
        if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(protocol(format!("message of {length} bytes")));
        }
        let mut body = vec![0; length - 4];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn data_row(body: &[u8]) -> Result<Vec<Option<String>>, TestError> {
    let short = || protocol("a row is cut short".to_owned());
    let count = body.get(..2).ok_or_else(short)?;
    let count = u16::from_be_bytes([count[0], count[1]]);
    let mut at = 2;
    let mut row = Vec::with_capacity(count.into());
    for _ in 0..count {
        let length = be_i32(body, at)?;
        at += 4;
        row.push(match usize::try_from(length) {
            Err(_) => None,
            Ok(length) => {
                let bytes = body.get(at..at + length).ok_or_else(short)?;
                at += length;
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
        });
    }
    Ok(row)
}

/// Code and message only: DETAIL carries row values (Q1).
fn server_error(body: &[u8]) -> TestError {
    let field = |kind: u8| {
        let text = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(&[kind]));
        text.map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
    };
    TestError::Server { code: field(b'C'), message: field(b'M') }
}

fn be_i32(bytes: &[u8], at: usize) -> Result<i32, TestError> {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map(i32::from_be_bytes).ok_or_else(|| protocol("a message is cut short".to_owned()))
}

fn protocol(what: String) -> TestError {
    TestError::Protocol(what)
}
