/** The board: lists and cards as the scope has them. Draws what is there; what a person does goes to `Actions`. */

import { arrange, byId, h } from './dom.ts';
import type { OwnWrites } from './own.ts';
import type { DemoCard, DemoList } from './schema.ts';

export interface Actions {
  add(list: DemoList, title: string): void;
  rename(card: DemoCard, title: string): void;
  /** To that place among the other cards of the list. */
  move(card: DemoCard, list: DemoList, index: number): void;
  remove(card: DemoCard): void;
}

interface Column {
  readonly root: HTMLElement;
  readonly name: HTMLElement;
  readonly count: HTMLElement;
  readonly cards: HTMLElement;
}

export class Board {
  readonly #actions: Actions;
  readonly #own: OwnWrites;
  readonly #columns = new Map<bigint, Column>();
  readonly #cards = new Map<bigint, { readonly root: HTMLElement; drawn: string }>();
  #lists: readonly DemoList[] = [];
  #shown = new Map<bigint, DemoCard>();
  #writable = false;
  /** The card under the pointer, while it is dragged. */
  #dragged: bigint | null = null;
  #editing: bigint | null = null;

  constructor(actions: Actions, own: OwnWrites) {
    this.#actions = actions;
    this.#own = own;
  }

  draw(lists: readonly DemoList[], cards: readonly DemoCard[], writable: boolean): void {
    this.#lists = [...lists].sort((a, b) => a.position - b.position);
    this.#shown = new Map(cards.map((card) => [card.id, card]));
    if (writable !== this.#writable) this.#columns.clear();
    this.#writable = writable;
    const columns = this.#lists.map((list) => {
      const column = this.#column(list);
      const mine = cardsOf(list, cards);
      column.name.textContent = list.name;
      column.count.textContent = String(mine.length);
      arrange(
        column.cards,
        mine.map((card) => this.#card(card)),
      );
      return column.root;
    });
    for (const id of this.#cards.keys()) if (!this.#shown.has(id)) this.#cards.delete(id);
    arrange(byId('board'), columns);
  }

  /** Points at cards that somebody else has changed. */
  flash(ids: readonly bigint[]): void {
    for (const id of ids) {
      const root = this.#cards.get(id)?.root;
      root?.classList.remove('flash');
      // Read, so that the animation starts anew.
      void root?.offsetWidth;
      root?.classList.add('flash');
    }
  }

  #column(list: DemoList): Column {
    const known = this.#columns.get(list.id);
    if (known !== undefined) return known;
    const name = h('h2', {});
    const count = h('span', { class: 'count', 'aria-label': 'cards' });
    const cards = h('ol', { class: 'cards' });
    const open = list.public ? h('span', { class: 'public', title: 'Visitors see this list too' }, 'public') : null;
    const root = h(
      'section',
      { class: 'list' },
      h('header', {}, name, open, count),
      cards,
      this.#writable ? this.#adder(list) : null,
    );
    if (this.#writable) this.#accept(root, cards, list);
    const column = { root, name, count, cards };
    this.#columns.set(list.id, column);
    return column;
  }

  #adder(list: DemoList): HTMLElement {
    const input = h('input', {
      name: 'title',
      placeholder: 'Add a card',
      maxlength: '200',
      autocomplete: 'off',
      'aria-label': `New card in ${list.name}`,
    });
    const submit = (event: Event) => {
      event.preventDefault();
      const title = input.value.trim();
      if (title !== '') this.#actions.add(list, title);
      input.value = '';
    };
    return h('form', { class: 'adder', submit }, input, h('button', { type: 'submit' }, 'Add'));
  }

  #card(card: DemoCard): HTMLElement {
    const known = this.#cards.get(card.id) ?? { root: h('li', { class: 'card' }), drawn: '' };
    this.#cards.set(card.id, known);
    // The card as it stands, its fate included: drawn again only when something of it has changed.
    const badge = this.#own.badge(card.id);
    const choice = this.#own.choice(card);
    const lists = this.#lists.map(({ id }) => id).join();
    const look = [
      card.title,
      card.note,
      card.color,
      card.rev,
      card.list_id,
      lists,
      this.#writable,
      badge?.outerHTML,
      choice?.textContent,
    ].join('\n');
    if (look === known.drawn || this.#editing === card.id) return known.root;
    known.drawn = look;
    known.root.dataset.color = card.color ?? '';
    const focused =
      document.activeElement instanceof HTMLElement && known.root.contains(document.activeElement)
        ? document.activeElement.dataset.act
        : undefined;
    known.root.replaceChildren(
      ...[
        this.#title(card),
        card.note === null ? null : h('p', { class: 'note' }, card.note),
        this.#foot(card, badge),
        choice,
      ].filter((part) => part !== null),
    );
    if (focused !== undefined) known.root.querySelector<HTMLElement>(`[data-act="${focused}"]`)?.focus();
    if (this.#writable) this.#draggable(known.root, card.id);
    return known.root;
  }

  #title(card: DemoCard): HTMLElement {
    if (!this.#writable) return h('p', { class: 'title' }, card.title);
    return h(
      'button',
      {
        class: 'title',
        type: 'button',
        'data-act': 'title',
        title: 'Edit the title',
        click: () => this.#edit(card.id),
      },
      card.title,
    );
  }

  #foot(card: DemoCard, badge: HTMLElement | null): HTMLElement {
    const at = this.#lists.findIndex(({ id }) => id === card.list_id);
    const to = (step: number, sign: string) => {
      const list = this.#lists[at + step];
      if (list === undefined) return null;
      const label = `Move “${card.title}” to ${list.name}`;
      const click = () => this.#actions.move(this.#shown.get(card.id)!, list, Number.POSITIVE_INFINITY);
      return h(
        'button',
        { type: 'button', class: 'act', 'data-act': sign, title: label, 'aria-label': label, click },
        sign,
      );
    };
    const label = `Delete “${card.title}”`;
    const remove = () => this.#actions.remove(this.#shown.get(card.id)!);
    const acts = this.#writable
      ? h(
          'span',
          { class: 'acts' },
          to(-1, '←'),
          to(1, '→'),
          h(
            'button',
            { type: 'button', class: 'act', 'data-act': 'delete', title: label, 'aria-label': label, click: remove },
            '×',
          ),
        )
      : null;
    return h('div', { class: 'foot' }, badge ?? h('span', { class: 'rev' }, `rev ${card.rev}`), acts);
  }

  #edit(id: bigint): void {
    const root = this.#cards.get(id)?.root;
    const card = this.#shown.get(id);
    if (root === undefined || card === undefined) return;
    this.#editing = id;
    const input = h('input', { class: 'title', value: card.title, maxlength: '200', 'aria-label': 'Title' });
    const end = (save: boolean) => {
      if (this.#editing !== id) return;
      this.#editing = null;
      this.#cards.get(id)!.drawn = '';
      const title = input.value.trim();
      const now = this.#shown.get(id);
      if (save && now !== undefined && title !== '' && title !== card.title) this.#actions.rename(now, title);
      else if (now !== undefined) this.#card(now);
      if (document.activeElement === document.body) root.querySelector<HTMLElement>('[data-act="title"]')?.focus();
    };
    input.addEventListener('keydown', ({ key }) => {
      if (key === 'Enter') end(true);
      else if (key === 'Escape') end(false);
    });
    input.addEventListener('blur', () => end(true));
    root.querySelector('.title')!.replaceWith(input);
    input.focus();
    input.select();
  }

  #draggable(root: HTMLElement, id: bigint): void {
    root.draggable = true;
    root.ondragstart = (event) => {
      this.#dragged = id;
      event.dataTransfer?.setData('text/plain', this.#shown.get(id)?.title ?? '');
      root.classList.add('dragged');
    };
    root.ondragend = () => {
      this.#dragged = null;
      root.classList.remove('dragged');
    };
  }

  #accept(root: HTMLElement, cards: HTMLElement, list: DemoList): void {
    const over = (inside: boolean) => root.classList.toggle('over', inside);
    root.addEventListener('dragover', (event) => {
      if (this.#dragged === null) return;
      event.preventDefault();
      over(true);
    });
    root.addEventListener('dragleave', (event) => {
      if (!root.contains(event.relatedTarget as Node | null)) over(false);
    });
    root.addEventListener('drop', (event) => {
      const card = this.#dragged === null ? undefined : this.#shown.get(this.#dragged);
      over(false);
      if (card === undefined) return;
      event.preventDefault();
      const others = [...cards.children].filter((child) => child !== this.#cards.get(card.id)?.root);
      const index = others.filter((child) => {
        const { top, height } = child.getBoundingClientRect();
        return top + height / 2 < event.clientY;
      }).length;
      this.#actions.move(card, list, index);
    });
  }
}

export function cardsOf(list: DemoList, cards: readonly DemoCard[]): DemoCard[] {
  return cards
    .filter(({ list_id }) => list_id === list.id)
    .sort((a, b) => a.position - b.position || (a.id < b.id ? -1 : 1));
}
