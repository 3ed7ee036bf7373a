//! What the generators of documentation and TypeScript both need from the table.

use std::collections::BTreeSet;
use tidegate_protocol::{Direction, Field, Record, Shape, Words, frames};

/// A doc comment on one line.
pub fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A closed list, and whether its words are numbers.
pub struct WordList {
    pub name: &'static str,
    pub words: &'static [(&'static str, &'static str)],
    pub number: bool,
}

/// The closed lists that frames use, by name.
pub fn words() -> Vec<WordList> {
    let mut lists: Vec<WordList> = Vec::new();
    let mut add =
        |words: &'static Words, number| lists.push(WordList { name: words.name, words: words.words, number });
    each_shape(&mut |shape, _| match shape {
        Shape::Word(words) => add(words, false),
        Shape::Number(words) => add(words, true),
        _ => {}
    });
    lists.sort_by_key(|list| list.name);
    lists.dedup_by_key(|list| list.name);
    lists
}

/// The maps and tuples inside frames, inner ones first, with the direction in which they travel.
pub fn records() -> Vec<(&'static Record, &'static Shape, Direction)> {
    let mut records = Vec::new();
    let mut seen = BTreeSet::new();
    each_shape(&mut |shape, direction| {
        if let Shape::Record(record) | Shape::Tuple(record) = shape
            && seen.insert(record.name)
        {
            records.push((*record, shape, direction));
        }
    });
    records
}

/// Every shape of the table, inner ones first.
fn each_shape(visit: &mut dyn FnMut(&'static Shape, Direction)) {
    fn fields(
        fields: &'static [Field],
        direction: Direction,
        visit: &mut dyn FnMut(&'static Shape, Direction),
    ) {
        fields.iter().for_each(|field| shape(&field.shape, direction, visit));
    }
    fn shape(this: &'static Shape, direction: Direction, visit: &mut dyn FnMut(&'static Shape, Direction)) {
        match this {
            Shape::List(item) => shape(item, direction, visit),
            Shape::Record(record) | Shape::Tuple(record) => fields(record.fields, direction, visit),
            _ => {}
        }
        visit(this, direction);
    }
    frames().for_each(|frame| fields(frame.fields, frame.direction, visit));
}
