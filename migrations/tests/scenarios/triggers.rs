//! TX-05: triggers of the application's that write, before ours, after ours, and around statements.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    let mut all = after_ours();
    all.extend(before_ours());
    all.extend(before_the_row());
    all.extend(per_statement());
    all
}

/// An AFTER ROW trigger on `item`.
fn after(name: &str, events: &str, body: &str) -> String {
    format!(
        "select app_trigger('{name}', 'after {events}', 'item', 'for each row', $t${body} return null;$t$)"
    )
}

/// Whose names sort after `!tidegate_fence`, as names do that begin with a letter.
fn after_ours() -> Vec<Scenario> {
    vec![
        scenario("after ours: updates the row that was inserted")
            .setup(after("a_touch", "insert", "update item set rev = rev + 1 where id = new.id;"))
            .run("insert into item (id) select generate_series(80, 82)")
            .gives(&["item I 80", "item I 81", "item I 82", "item U 80", "item U 81", "item U 82"]),
        scenario("after ours: deletes the row that was inserted")
            .setup(after("a_gone", "insert", "delete from item where id = new.id;"))
            .run("insert into item (id) values (1), (2)")
            .gives(&["item I 1", "item I 2", "item D 1", "item D 2"]),
        scenario("after ours: inserts the row that was deleted")
            .setup(ROWS)
            .setup(after("a_back", "delete", "insert into item (id, rev) values (old.id, 9);"))
            .run("delete from item where id < 3; update item set rev = 10")
            .gives(&["item D 1", "item D 2", "item I 1", "item I 2", "item U 3", "item U 1", "item U 2"]),
        scenario("after ours: updates it again and again")
            .setup(after("a_deep", "insert or update", "if new.rev < 12 then update item set rev = rev + 1 where id = new.id; end if;"))
            .run("insert into item (id) values (1), (2)")
            .gives_count(24),
        scenario("after ours: the customary stamp of the last change")
            .setup(ROWS)
            .setup("create function public.stamp() returns trigger language plpgsql as $$ begin update item set title = 'stamped' where id = new.id; return null; end $$;
                create trigger stamp after update of rev on item for each row when (pg_trigger_depth() = 0 and old.rev is distinct from new.rev) execute function stamp()")
            .run("update item set rev = 2; update item set rev = 2; update item set title = 'x' where id = 1")
            .gives_count(6 + 3 + 1),
        scenario("after ours: changes a neighbour whose fence has fired")
            .setup(ROWS)
            .setup(after("z_left", "update", "if new.title = 't' then update item set title = 'left' where id = new.id - 1; end if;"))
            .run("update item set rev = 2")
            .gives_count(5),
        scenario("after ours: changes a neighbour whose fence is due")
            .setup(ROWS)
            .setup(after("z_right", "update", "if new.title = 't' then update item set title = 'right' where id = new.id + 1; end if;"))
            .refused("update item set rev = 2"),
        scenario("after ours: deletes a neighbour whose fence is due")
            .setup(after("z_right", "insert", "delete from item where id = new.id + 1;"))
            .refused("insert into item (id) values (1), (2)"),
        scenario("after ours: changes a neighbour that the statement does not touch")
            .setup(ROWS)
            .setup(after("z_right", "update", "if new.title = 't' then update item set title = 'right' where id = new.id + 1; end if;"))
            .run("update item set rev = 2 where id = 2")
            .gives(&["item U 2", "item U 3"]),
        scenario("after ours: to and fro between two tables")
            .setup("insert into list values ('a'); insert into item (id, list_id) values (1, 'a')")
            .setup("select app_trigger('a_list', 'after update', 'item', 'for each row', 'if new.rev < 5 then update list set name = new.rev::text where id = new.list_id; end if; return null;'),
                app_trigger('a_item', 'after update', 'list', 'for each row', 'update item set rev = rev + 1 where list_id = new.id; return null;')")
            .run("update item set rev = 2")
            .gives(&["item U 1", "list U a", "item U 1", "list U a", "item U 1", "list U a", "item U 1"]),
        scenario("after ours: one trigger for a table that is not registered")
            .setup("create table public.outbox (n int); select app_trigger('a_out', 'after insert', 'outbox', 'for each row', 'insert into item (id) values (new.n); update item set rev = 2 where id = new.n; return null;')")
            .run("insert into outbox values (1), (2)")
            .gives(&["item I 1", "item U 1", "item I 2", "item U 2"]),
        scenario("after ours: fails, and all of it is undone")
            .setup(ROWS)
            .setup(after("a_no", "update", "update item set rev = 9 where id = new.id and rev < 9; raise exception 'no';"))
            .fails("P0001", "update item set rev = 2"),
    ]
}

/// Whose names sort before `!tidegate_fence`.
fn before_ours() -> Vec<Scenario> {
    vec![
        scenario("before ours: updates the row that was inserted")
            .setup(after(" early", "insert", "update item set rev = rev + 1 where id = new.id;"))
            .refused("insert into item (id) values (1)"),
        scenario("before ours: deletes the row that was inserted")
            .setup(after(" early", "insert", "delete from item where id = new.id;"))
            .refused("insert into item (id) values (1)"),
        scenario("before ours: deletes and inserts the row that was inserted")
            .setup(after(" early", "insert", "if new.rev = 1 then delete from item where id = new.id; insert into item (id, rev) values (new.id, 2); end if;"))
            .refused("insert into item (id) values (1)"),
        scenario("before ours: updates the row that was updated")
            .setup(ROWS)
            .setup(after(" early", "update", "if new.rev = 2 then update item set rev = 3 where id = new.id; end if;"))
            .refused("update item set rev = 2 where id = 1"),
        scenario("before ours: deletes the row that was updated")
            .setup(ROWS)
            .setup(after(" early", "update", "delete from item where id = new.id;"))
            .refused("update item set rev = 2 where id = 1"),
        scenario("before ours: deletes and inserts the row that was updated")
            .setup(ROWS)
            .setup(after(" early", "update", "delete from item where id = new.id; insert into item (id) values (new.id);"))
            .refused("update item set rev = 2 where id = 1"),
        scenario("before ours: inserts the row that was deleted")
            .setup(ROWS)
            .setup(after(" early", "delete", "insert into item (id) values (old.id);"))
            .refused("delete from item where id = 1"),
        scenario("before ours: inserts and deletes the row that was deleted")
            .setup(ROWS)
            .setup(after(" early", "delete", "if old.rev = 1 then insert into item (id, rev) values (old.id, 2); delete from item where id = old.id; end if;"))
            .refused("delete from item where id = 1"),
        scenario("before ours: the same, in a transaction that has changed the row before")
            .setup(ROWS)
            .setup(after(" early", "update", "if new.rev = 3 then update item set rev = 4 where id = new.id; end if;"))
            .refused("update item set rev = 2; update item set rev = 3"),
        scenario("before ours: writes another row and another table")
            .setup(ROWS)
            .setup(after(" early", "update", "insert into list values (new.id::text); if new.id = 1 then update item set title = 'z' where id = 3; end if;"))
            .run("update item set rev = 2 where id = 1")
            .gives(&["item U 1", "list I 1", "item U 3", "list I 3"]),
        scenario("before ours: writes the row of another table that wrote it")
            .setup("insert into list values ('a'); insert into item (id, list_id) values (1, 'a')")
            .setup("select app_trigger(' early', 'after update', 'list', 'for each row', 'update item set rev = rev + 1 where list_id = new.id; return null;'),
                app_trigger('a_list', 'after update', 'item', 'for each row', 'if new.rev < 3 then update list set name = name || ''x'' where id = new.list_id; end if; return null;')")
            .refused("update list set name = 'n'"),
    ]
}

fn before_the_row() -> Vec<Scenario> {
    vec![
        scenario("before trigger: rewrites the row")
            .setup("select app_trigger('rewrite', 'before insert or update', 'item', 'for each row', 'new.title := coalesce(new.title, '''') || ''.''; new.rev := new.rev * 2; return new;')")
            .run("insert into item (id) values (1), (2); update item set rev = 5; update item set title = 'u' where id = 1; delete from item")
            .gives_count(2 + 2 + 1 + 2),
        scenario("before trigger: keeps rows from the statement")
            .setup(ROWS)
            .setup("select app_trigger('skip', 'before insert or update or delete', 'item', 'for each row', 'if coalesce(new.id, old.id) = 2 then return null; end if; if tg_op = ''DELETE'' then return old; end if; return new;')")
            .run("update item set rev = 2; delete from item where id < 3; insert into item (id) values (2), (7)")
            .fails("23505", "insert into item (id) values (3)")
            .gives(&["item U 1", "item U 3", "item D 1", "item I 7"]),
        scenario("before trigger: whose name sorts behind the guard rewrites the row")
            .setup(ROWS)
            .setup("select app_trigger('~~late', 'before update', 'item', 'for each row', 'new.title := ''late''; return new;')")
            .run("update item set rev = 2")
            .gives_count(3),
        scenario("before trigger: changes the key before the guard looks")
            .setup(ROWS)
            .setup("select app_trigger('move', 'before update', 'item', 'for each row', 'new.id := new.id + 100; return new;')")
            .refused_key("update item set rev = 2 where id = 1"),
        scenario("before trigger: changes the key after the guard has looked")
            .setup(ROWS)
            .setup("select app_trigger('~~move', 'before update', 'item', 'for each row', 'new.id := new.id + 100; return new;')")
            .refused_key("update item set rev = 2 where id = 1"),
        scenario("before trigger: chooses the key of an insert")
            .setup("select app_trigger('~~choose', 'before insert', 'item', 'for each row', 'new.id := new.id + 100; return new;')")
            .run("insert into item (id) values (1), (2)")
            .gives(&["item I 101", "item I 102"]),
        scenario("before trigger: updates the row that is being updated")
            .setup(ROWS)
            .setup("select app_trigger('b', 'before update', 'item', 'for each row', 'if new.rev = 2 then update item set rev = 3 where id = new.id; end if; return new;')")
            .fails("27000", "update item set rev = 2 where id = 1"),
        scenario("before trigger: deletes the row that is being updated")
            .setup(ROWS)
            .setup("select app_trigger('b', 'before update', 'item', 'for each row', 'delete from item where id = new.id; return new;')")
            .fails("27000", "update item set rev = 2 where id = 1"),
        scenario("before trigger: updates the row that is being deleted")
            .setup(ROWS)
            .setup("select app_trigger('b', 'before delete', 'item', 'for each row', 'update item set rev = 3 where id = old.id; return old;')")
            .fails("27000", "delete from item where id = 1"),
        scenario("before trigger: changes a row of the statement already changed")
            .setup(ROWS)
            .setup("select app_trigger('b', 'before update', 'item', 'for each row', 'if new.id = 2 then update item set title = ''b'' where id = 1; end if; return new;')")
            .refused("update item set rev = 2"),
        scenario("before trigger: changes rows that the statement does not touch")
            .setup(ROWS)
            .setup("select app_trigger('b', 'before update', 'item', 'for each row', 'if new.id < 3 then update item set title = title || ''b'' where id = 3; end if; return new;')")
            .run("update item set rev = 2 where id < 3")
            .gives(&["item U 3", "item U 1", "item U 3", "item U 2"]),
        scenario("before trigger: writes the row's parent")
            .setup("select app_trigger('b', 'before insert', 'item', 'for each row', 'insert into list values (new.list_id, ''x'') on conflict (id) do update set name = list.name || ''x''; return new;')")
            .run("insert into item (id, list_id) values (1, 'a'), (2, 'a')")
            .gives(&["list I a", "item I 1", "list U a", "item I 2"]),
    ]
}

fn per_statement() -> Vec<Scenario> {
    let transition = "create function public.later() returns trigger language plpgsql as $$ begin if exists (select from new_rows where rev < 10) then update item i set rev = i.rev + 10 from new_rows n where i.id = n.id; end if; return null; end $$;";
    vec![
        scenario("after statement: changes the rows that were changed")
            .setup(ROWS)
            .setup("select app_trigger('later', 'after update', 'item', 'for each statement', 'if exists (select from item where rev = 2) then update item set rev = 10 where rev = 2; end if; return null;')")
            .run("update item set rev = 2")
            .gives_count(6),
        scenario("after statement: whose name sorts before ours")
            .setup(ROWS)
            .setup("select app_trigger(' early', 'after update', 'item', 'for each statement', 'if exists (select from item where rev = 2) then update item set rev = 10 where rev = 2; end if; return null;')")
            .run("update item set rev = 2")
            .gives_count(6),
        scenario("after statement: with transition tables of an insert")
            .setup(format!("{transition} create trigger later after insert on item referencing new table as new_rows for each statement execute function later()"))
            .run("insert into item (id) select generate_series(1, 3)")
            .gives_count(6),
        scenario("after statement: with transition tables of an update")
            .setup(ROWS)
            .setup(format!("{transition} create trigger later after update on item referencing old table as old_rows new table as new_rows for each statement execute function later()"))
            .run("update item set rev = 2; update item set rev = 3 where id = 1")
            .gives_count(3 + 3 + 1 + 1),
        scenario("after statement: with transition tables of a delete that come back")
            .setup(ROWS)
            .setup("create function public.back() returns trigger language plpgsql as $$ begin insert into item (id, rev) select id, rev + 1 from old_rows where rev < 3; return null; end $$;
                create trigger back after delete on item referencing old table as old_rows for each statement execute function back()")
            .run("delete from item; delete from item; delete from item")
            .gives_count(3 * 5),
        scenario("after row: that reads transition tables")
            .setup(ROWS)
            .setup("create function public.reading() returns trigger language plpgsql as $$ begin if (select count(*) from new_rows) = 3 and new.rev = 2 then update item set rev = 3 where id = new.id; end if; return null; end $$;
                create trigger z_both after update on item referencing new table as new_rows for each row execute function reading()")
            .run("update item set rev = 2")
            .gives_count(6),
        scenario("before statement: writes rows that the statement is about to change")
            .setup(ROWS)
            .setup("select app_trigger('first', 'before update', 'item', 'for each statement', 'if pg_trigger_depth() = 1 then update item set title = ''first''; end if; return null;')")
            .fails("27000", "update item set rev = 2"),
        scenario("before statement: writes other rows of the table")
            .setup(ROWS)
            .setup("select app_trigger('first', 'before update', 'item', 'for each statement', 'if pg_trigger_depth() = 1 then update item set title = ''first'' where id = 1; delete from item where id = 3; end if; return null;')")
            .run("update item set rev = 2 where id = 2")
            .gives(&["item U 1", "item D 3", "item U 2"]),
        scenario("before statement and after statement, both of them writing")
            .setup("select app_trigger('first', 'before insert', 'item', 'for each statement', 'if pg_trigger_depth() = 1 then insert into item (id) values (100); end if; return null;'),
                app_trigger('last', 'after insert', 'item', 'for each statement', 'if pg_trigger_depth() = 1 then update item set rev = 2; end if; return null;')")
            .run("insert into item (id) values (1)")
            .gives(&["item I 100", "item I 1", "item U 100", "item U 1"]),
    ]
}
