//! The closed `where` language, as registration parsed it, and its three-valued evaluation over a row image.

use crate::WireValue;
use serde::{Deserialize, Serialize};

/// A condition over one row. Built by `migrations/sql/0006_definition.sql` from text; evaluated here (and nowhere else).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Predicate {
    /// All hold.
    And {
        /// The parts.
        args: Vec<Predicate>,
    },
    /// At least one holds.
    Or {
        /// The parts.
        args: Vec<Predicate>,
    },
    /// It does not hold.
    Not {
        /// The part.
        arg: Box<Predicate>,
    },
    /// `left = right`
    Eq(Comparison),
    /// `left <> right`
    Ne(Comparison),
    /// `left < right`
    Lt(Comparison),
    /// `left <= right`
    Le(Comparison),
    /// `left > right`
    Gt(Comparison),
    /// `left >= right`
    Ge(Comparison),
    /// `left in (…)`
    In {
        /// What is looked for.
        left: Operand,
        /// Literals.
        list: Vec<Operand>,
    },
    /// `arg is null`; never unknown.
    IsNull {
        /// What is tested.
        arg: Operand,
    },
    /// A boolean column by itself.
    Column {
        /// The column.
        arg: Operand,
    },
}

/// Two operands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Left of the operator.
    pub left: Operand,
    /// Right of the operator.
    pub right: Operand,
}

/// A column or a literal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Operand {
    /// Value of a captured column.
    Column {
        /// Its name.
        column: String,
    },
    /// A constant.
    Literal(Literal),
}

/// A constant of a portable type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "literal", rename_all = "lowercase")]
pub enum Literal {
    /// Any integer type.
    Int(i64),
    /// text, varchar, uuid, enum.
    String(String),
    /// boolean
    Bool(bool),
    /// `null`
    Null,
}

impl Predicate {
    /// SQL's three-valued truth: `None` is unknown, which admits no row.
    pub fn evaluate<'r>(&'r self, column: &impl Fn(&str) -> WireValue<'r>) -> Option<bool> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        match self {
            Predicate::And { args } => {
                any(args.iter().map(|arg| arg.evaluate(column).map(|truth| !truth))).map(|truth| !truth)
            }
            Predicate::Or { args } => any(args.iter().map(|arg| arg.evaluate(column))),
            Predicate::Not { arg } => arg.evaluate(column).map(|truth| !truth),
            Predicate::Eq(c) => c.order(column).map(|o| o == Equal),
            Predicate::Ne(c) => c.order(column).map(|o| o != Equal),
            Predicate::Lt(c) => c.order(column).map(|o| o == Less),
            Predicate::Le(c) => c.order(column).map(|o| o != Greater),
            Predicate::Gt(c) => c.order(column).map(|o| o == Greater),
            Predicate::Ge(c) => c.order(column).map(|o| o != Less),
            Predicate::In { left, list } => {
                let left = left.value(column);
                any(list.iter().map(|item| order(left, item.value(column)).map(|o| o == Equal)))
            }
            Predicate::IsNull { arg } => Some(arg.value(column) == WireValue::Nil),
            Predicate::Column { arg } => match arg.value(column) {
                WireValue::Bool(truth) => Some(truth),
                _ => None,
            },
        }
    }
}

/// True as soon as one is true, else unknown if one is unknown, else false.
fn any(truths: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut unknown = false;
    for truth in truths {
        match truth {
            Some(true) => return Some(true),
            Some(false) => {}
            None => unknown = true,
        }
    }
    (!unknown).then_some(false)
}

impl Comparison {
    fn order<'r>(&'r self, column: &impl Fn(&str) -> WireValue<'r>) -> Option<std::cmp::Ordering> {
        order(self.left.value(column), self.right.value(column))
    }
}

impl Operand {
    fn value<'r>(&'r self, column: &impl Fn(&str) -> WireValue<'r>) -> WireValue<'r> {
        match self {
            Operand::Column { column: name } => column(name),
            Operand::Literal(Literal::Int(value)) => WireValue::Int(*value),
            Operand::Literal(Literal::String(text)) => WireValue::Str(text),
            Operand::Literal(Literal::Bool(value)) => WireValue::Bool(*value),
            Operand::Literal(Literal::Null) => WireValue::Nil,
        }
    }
}

/// Unknown when either side is null. Registration has made the types agree, and allows only equality on strings, whose order
/// depends on a collation that we do not have.
fn order(left: WireValue<'_>, right: WireValue<'_>) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (WireValue::Int(a), WireValue::Int(b)) => Some(a.cmp(&b)),
        (WireValue::Str(a), WireValue::Str(b)) => Some(a.cmp(b)),
        (WireValue::Bool(a), WireValue::Bool(b)) => Some(a.cmp(&b)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(json: &str) -> Option<bool> {
        let predicate: Predicate = serde_json::from_str(json).expect("a predicate");
        predicate.evaluate(&|name| match name {
            "n" => WireValue::Nil,
            "i" => WireValue::Int(5),
            _ => WireValue::Bool(true),
        })
    }

    #[test]
    fn null_makes_comparisons_unknown_and_and_or_absorb_it_as_in_sql() {
        let eq = |column: &str| {
            format!(r#"{{"op":"eq","left":{{"column":"{column}"}},"right":{{"literal":5,"type":"int"}}}}"#)
        };
        assert_eq!(truth(&eq("i")), Some(true));
        assert_eq!(truth(&eq("n")), None);
        assert_eq!(truth(&format!(r#"{{"op":"and","args":[{},{}]}}"#, eq("n"), eq("i"))), None);
        assert_eq!(truth(&format!(r#"{{"op":"or","args":[{},{}]}}"#, eq("n"), eq("i"))), Some(true));
        assert_eq!(truth(&format!(r#"{{"op":"not","arg":{}}}"#, eq("n"))), None);
        let list = r#"{"op":"in","left":{"column":"i"},"list":[{"literal":1,"type":"int"},{"literal":null,"type":"null"}]}"#;
        assert_eq!(truth(list), None, "not found, but the list holds a null");
        assert_eq!(truth(r#"{"op":"is_null","arg":{"column":"n"}}"#), Some(true));
        assert_eq!(truth(r#"{"op":"column","arg":{"column":"b"}}"#), Some(true));
    }
}
