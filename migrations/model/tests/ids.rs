//! Ids of rules (`A7`) and of cases (`DT-02`): where they are declared, and how a test's name carries them. Pure.

use std::collections::BTreeSet;
use std::fmt;

/// A rule of CONTRACT.md or a case of CASES.md.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    family: String,
    number: u8,
}

impl Id {
    /// Reads `A7`, `DT-02`, `a7`, `dt02` or `dt_02`. One letter and a number is a rule, two letters and a number a case.
    pub fn parse(text: &str) -> Option<Id> {
        let letters = text.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (family, rest) = text.split_at(letters);
        let digits = match letters {
            1 => rest,
            2 => rest.strip_prefix(['-', '_']).unwrap_or(rest),
            _ => return None,
        };
        let plausible = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| plausible)?;
        Some(Id { family: family.to_ascii_uppercase(), number })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family.len() {
            1 => write!(f, "{}{}", self.family, self.number),
            _ => write!(f, "{}-{:02}", self.family, self.number),
        }
    }
}

/// Rules are set in bold where they are stated: `**A7**`.
pub fn rules(contract: &str) -> BTreeSet<Id> {
    contract.split("**").skip(1).step_by(2).filter_map(Id::parse).collect()
}

/// Cases are the first cells of a table's rows: `| DT-02 | …`.
pub fn cases(text: &str) -> BTreeSet<Id> {
    let cell = |line: &str| Id::parse(line.strip_prefix('|')?.split('|').next()?.trim());
    text.lines().filter_map(cell).collect()
}

/// The ids that a name begins with, in a Rust function's (`tx03_f11_a_write…`) or in a title's form (`wr_01 v3 a push…`).
pub fn leading(name: &str) -> Vec<Id> {
    let words: Vec<&str> =
        if name.contains(' ') { name.split(' ').collect() } else { name.split('_').collect() };
    words.into_iter().map_while(Id::parse).collect()
}

#[test]
fn ids_are_read_in_every_form_and_nothing_else_is_one() {
    for (text, shown) in [
        ("A7", "A7"),
        ("a7", "A7"),
        ("h10", "H10"),
        ("DT-02", "DT-02"),
        ("dt02", "DT-02"),
        ("dt_02", "DT-02"),
    ] {
        assert_eq!(Id::parse(text).expect(text).to_string(), shown);
    }
    for text in ["", "a", "7", "abc1", "a7b", "A-7", "a_7", "a123", "dt", "ipv4", "pg15s"] {
        assert_eq!(Id::parse(text), None, "{text}");
    }
}

#[test]
fn a_name_carries_the_ids_that_it_begins_with() {
    let shown = |name| leading(name).iter().map(Id::to_string).collect::<Vec<_>>();
    assert_eq!(shown("a7_idle_ack_stops_at_active_poison"), ["A7"]);
    assert_eq!(shown("tx03_f11_a_write_that_bypassed_the_triggers"), ["TX-03", "F11"]);
    assert_eq!(shown("v4_v5_a_client_rebuilds"), ["V4", "V5"]);
    assert_eq!(shown("wr_01 v3 a push whose answer was lost"), ["WR-01", "V3"]);
    assert_eq!(shown("the_tail_of_a7"), [""; 0]);
    assert_eq!(shown("h_each_check_fails_alone"), [""; 0]);
}

#[test]
fn declarations_are_found_in_the_form_that_the_documents_have() {
    let shown = |ids: BTreeSet<Id>| ids.iter().map(Id::to_string).collect::<Vec<_>>();
    let contract =
        "# **The** contract\n- **P1** A position. Not **bold**, as in A9.\n**X1** No. **X2** Neither.\n";
    assert_eq!(shown(rules(contract)), ["P1", "X1", "X2"]);
    let text = "| case | elsewhere |\n| --- | --- |\n| DT-02 | Digits (see TX-01). |\nDT-03 | no |\n";
    assert_eq!(shown(cases(text)), ["DT-02"]);
}
