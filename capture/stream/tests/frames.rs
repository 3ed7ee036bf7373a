//! Writes pgoutput messages (protocol version 1), as PostgreSQL does.

/// One value of a tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Null,
    Unchanged,
    Text(String),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<Option<&str>> for Cell {
    fn from(text: Option<&str>) -> Cell {
        text.map_or(Cell::Null, Cell::from)
    }
}

pub fn begin(commit_lsn: u64, xid: u32) -> Vec<u8> {
    let mut out = vec![b'B'];
    out.extend(commit_lsn.to_be_bytes());
    out.extend((commit_lsn as i64 * 10).to_be_bytes());
    out.extend(xid.to_be_bytes());
    out
}

pub fn commit(commit_lsn: u64) -> Vec<u8> {
    let mut out = vec![b'C', 0];
    out.extend(commit_lsn.to_be_bytes());
    out.extend((commit_lsn + 8).to_be_bytes());
    out.extend((commit_lsn as i64 * 10).to_be_bytes());
    out
}

/// Columns: name, type OID, whether in the replica identity.
pub fn relation(oid: u32, schema: &str, name: &str, identity: u8, columns: &[(&str, u32, bool)]) -> Vec<u8> {
    let mut out = vec![b'R'];
    out.extend(oid.to_be_bytes());
    string(&mut out, schema);
    string(&mut out, name);
    out.push(identity);
    out.extend((columns.len() as u16).to_be_bytes());
    for (name, type_oid, in_identity) in columns {
        out.push(u8::from(*in_identity));
        string(&mut out, name);
        out.extend(type_oid.to_be_bytes());
        out.extend((-1i32).to_be_bytes());
    }
    out
}

pub fn insert(oid: u32, new: &[Cell]) -> Vec<u8> {
    let mut out = vec![b'I'];
    out.extend(oid.to_be_bytes());
    out.push(b'N');
    tuple(&mut out, new);
    out
}

/// `old`: the old-key tuple, with its tag (`K` or `O`).
pub fn update(oid: u32, old: Option<(u8, &[Cell])>, new: &[Cell]) -> Vec<u8> {
    let mut out = vec![b'U'];
    out.extend(oid.to_be_bytes());
    if let Some((tag, old)) = old {
        out.push(tag);
        tuple(&mut out, old);
    }
    out.push(b'N');
    tuple(&mut out, new);
    out
}

pub fn delete(oid: u32, old: &[Cell]) -> Vec<u8> {
    let mut out = vec![b'D'];
    out.extend(oid.to_be_bytes());
    out.push(b'K');
    tuple(&mut out, old);
    out
}

pub fn truncate(oids: &[u32]) -> Vec<u8> {
    let mut out = vec![b'T'];
    out.extend((oids.len() as u32).to_be_bytes());
    out.push(1);
    oids.iter().for_each(|oid| out.extend(oid.to_be_bytes()));
    out
}

pub fn message(transactional: bool, prefix: &str, content: &[u8]) -> Vec<u8> {
    let mut out = vec![b'M', u8::from(transactional)];
    out.extend(77u64.to_be_bytes());
    string(&mut out, prefix);
    out.extend((content.len() as u32).to_be_bytes());
    out.extend(content);
    out
}

pub fn origin() -> Vec<u8> {
    let mut out = vec![b'O'];
    out.extend(5u64.to_be_bytes());
    string(&mut out, "elsewhere");
    out
}

pub fn type_name(oid: u32) -> Vec<u8> {
    let mut out = vec![b'Y'];
    out.extend(oid.to_be_bytes());
    string(&mut out, "public");
    string(&mut out, "mood");
    out
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend(text.as_bytes());
    out.push(0);
}

fn tuple(out: &mut Vec<u8>, cells: &[Cell]) {
    out.extend((cells.len() as u16).to_be_bytes());
    for cell in cells {
        match cell {
            Cell::Null => out.push(b'n'),
            Cell::Unchanged => out.push(b'u'),
            Cell::Text(text) => {
                out.push(b't');
                out.extend((text.len() as u32).to_be_bytes());
                out.extend(text.as_bytes());
            }
        }
    }
}
