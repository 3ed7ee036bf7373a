//! Schemas as other versions of the program would carry them, and what a database says of which one it holds.

use crate::application::text;
use sqlx::postgres::PgPool;
use tidegate_migrations::{File, GENERATION, Schema};

/// A file that says which program's it is. Tables and functions survive in no other way.
fn marker(name: &str, program: &str) -> File {
    let text = format!(
        "create or replace function tidegate.loaded_by() returns text language sql as $f$ select '{program}' $f$"
    );
    File { name: leak(name.to_owned()), text: leak(text) }
}

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// This schema with one text replaced in one file.
pub fn edited(from: &str, to: &str) -> Schema {
    let mut schema = Schema::full();
    let file = schema.files.iter_mut().find(|file| file.text.contains(from)).expect("the text");
    file.text = leak(file.text.replacen(from, to, 1));
    schema
}

/// A program of this generation and name: fences that carry its name, and a file more.
pub fn program(generation: i32, name: &str) -> Schema {
    let comment = format!("v uuid := gen_random_uuid(); -- of {name}");
    let mut schema = edited("v uuid := gen_random_uuid();", &comment);
    schema.generation = generation;
    schema.files.push(marker(&format!("{generation:04}_marker.sql"), name));
    schema
}

/// One of the next generation.
pub fn newer() -> Schema {
    program(GENERATION + 1, "newer")
}

/// One of this generation that is not the one of the tests' template.
pub fn older() -> Schema {
    program(GENERATION, "older")
}

/// This schema, with a file of this text behind its first `count` ones.
pub fn with_file_after(schema: &Schema, count: usize, text: &str) -> Schema {
    let mut schema = schema.clone();
    schema
        .files
        .insert(count, File { name: leak(format!("{count:04}_test.sql")), text: leak(text.to_owned()) });
    schema
}

/// This schema, with this text at the end of its file of this index.
pub fn with_text_at_end_of(schema: &Schema, index: usize, text: &str) -> Schema {
    let mut schema = schema.clone();
    schema.files[index].text = leak(format!("{};\n{text}", schema.files[index].text));
    schema
}

/// Asserts that the stamp vouches for this schema, and that the database holds exactly it.
pub async fn assert_holds(pool: &PgPool, schema: &Schema, name: &str) {
    let hash: String = schema.content_hash().iter().map(|byte| format!("{byte:02x}")).collect();
    let stamped = "select format('%s %s %s %s', generation, loader, encode(content_hash, 'hex'), replaying) from tidegate.schema_stamp";
    assert_eq!(text(pool, stamped).await, format!("{} {} {hash} ", schema.generation, schema.loader));
    assert_eq!(text(pool, "select tidegate.loaded_by()").await, name);
    let fences = "select coalesce(string_agg(distinct substring(prosrc from '-- of (\\w+)'), ' '), 'none') from pg_proc
        where pronamespace = 'tidegate'::regnamespace and proname ~ '^fence_[0-9]+$'";
    let shown = text(pool, fences).await;
    assert!(shown == name || shown == "none", "fences of {shown}");
    for check in ["trigger_problems", "relation_problems", "publication_problems"] {
        assert_eq!(
            text(pool, &format!("select count(*)::text from tidegate.{check}()")).await,
            "0",
            "{check}"
        );
    }
}
