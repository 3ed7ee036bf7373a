/** The fate of own writes: a badge on the card, a line in the list below, and the choice where somebody else came first. */

import type { Pending, Sync, Write } from 'tidegate';
import { arrange, byId, h } from './dom.ts';
import type { DemoCard, Tables } from './schema.ts';

type Stage = 'saving' | 'saved' | 'committed' | 'visible' | 'parked';

interface Own {
  readonly write: Write;
  readonly cards: readonly bigint[];
  readonly what: string;
  stage: Stage;
  line: HTMLElement;
}

const LINES_MAX = 6;
/** How long a badge stays when everything is done. */
const DONE_MS = 2_500;

export class OwnWrites {
  readonly #sync: Sync<Tables>;
  readonly #changed: () => void;
  readonly #titleOf: (id: bigint) => string | undefined;
  /** Newest first. */
  #own: Own[] = [];

  constructor(sync: Sync<Tables>, titleOf: (id: bigint) => string | undefined, changed: () => void) {
    this.#sync = sync;
    this.#titleOf = titleOf;
    this.#changed = changed;
    sync.pending.subscribe(() => {
      this.#show();
      changed();
    });
  }

  /** Follows a write from here to the log and back. */
  follow(what: string, cards: readonly bigint[], write: Write): void {
    const own: Own = { write, cards, what, stage: 'saving', line: h('li') };
    this.#own = [own, ...this.#own].slice(0, 50);
    const reach = (stage: Stage) => {
      own.stage = stage;
      this.#show();
      this.#changed();
    };
    void write.saved.then(({ ok }) => reach(ok ? 'saved' : 'parked'));
    void write.committed.then((outcome) => {
      if (outcome.ok) return reach('committed');
      if (!this.parked().some(({ id }) => id === write.id)) own.line.title = outcome.error.message;
      reach('parked');
    });
    void write.visible.then(({ ok }) => {
      if (!ok) return;
      reach('visible');
      setTimeout(() => {
        own.stage = 'visible';
        this.#done.add(own);
        this.#changed();
      }, DONE_MS);
    });
    this.#show();
  }

  readonly #done = new Set<Own>();

  /** The badge of a card: that of the last write on it, while there is something to tell. */
  badge(card: bigint): HTMLElement | null {
    const own = this.#own.find(({ cards }) => cards.includes(card));
    if (own === undefined || own.stage === 'parked' || this.#done.has(own)) return null;
    return steps(own.stage);
  }

  parked(): readonly Pending<Tables>[] {
    return this.#sync.pending.value.filter(({ state }) => state === 'parked');
  }

  /** What is to be decided about a card; null: nothing. */
  choice(card: DemoCard): HTMLElement | null {
    const parked = this.parked().find(({ mutations }) => mutations.some(({ key }) => key === card.id));
    return parked === undefined ? null : this.#question(parked, card);
  }

  #question(parked: Pending<Tables>, card: DemoCard | undefined): HTMLElement {
    const mine = parked.mutations.flatMap(({ op, columns }) => {
      if (op === 'delete') return ['deleted'];
      const title = (columns as Partial<DemoCard> | null)?.title;
      return title === undefined ? ['moved'] : [`“${title}”`];
    })[0];
    const conflict = parked.error?.code === 'conflict' || parked.error?.code === 'row_exists';
    return h(
      'div',
      { class: 'choice', role: 'group', 'aria-label': 'A change of yours that was not made' },
      h('p', {}, conflict ? 'Somebody else changed this first.' : `Not accepted: ${parked.error?.message ?? ''}`),
      h(
        'p',
        { class: 'versions' },
        `yours: ${mine ?? ''}`,
        card === undefined ? ' · theirs: deleted' : ` · theirs: “${card.title}”`,
      ),
      h('button', { type: 'button', click: () => this.#again(parked) }, conflict ? 'Keep mine' : 'Try again'),
      h(
        'button',
        { type: 'button', click: () => void this.#sync.discard(parked.id) },
        conflict ? 'Take theirs' : 'Forget it',
      ),
    );
  }

  #again(parked: Pending<Tables>): void {
    const cards = parked.mutations.flatMap(({ key }) => (typeof key === 'bigint' ? [key] : []));
    const title = this.#titleOf(cards[0]!);
    this.follow(`kept mine on ${title === undefined ? 'a card' : `“${title}”`}`, cards, this.#sync.retry(parked.id));
  }

  #show(): void {
    const lines = this.#own.slice(0, LINES_MAX).map((own) => {
      own.line.replaceChildren(
        h('span', { class: 'what' }, own.what),
        own.stage === 'parked' ? refused() : steps(own.stage),
      );
      return own.line;
    });
    // Choices about cards that are not on the board any more have no other place.
    const homeless = this.parked()
      .filter(({ mutations }) =>
        mutations.every(({ key }) => typeof key !== 'bigint' || this.#titleOf(key) === undefined),
      )
      .map((parked) => h('li', {}, this.#question(parked, undefined)));
    if (lines.length === 0 && homeless.length === 0)
      lines.push(h('li', { class: 'none' }, 'Nothing yet: move, edit or add a card.'));
    arrange(byId('own'), [...homeless, ...lines]);
  }
}

const REACHED: Record<Stage, number> = { saving: 0, saved: 1, committed: 2, visible: 3, parked: 0 };

/** Three steps, as far as reached, and the last one in words. */
function steps(stage: Stage): HTMLElement {
  const reached = REACHED[stage];
  const dots = [1, 2, 3].map((step) => h('i', { class: step <= reached ? 'done' : '' }));
  return h('span', { class: 'fate', 'data-stage': stage, title: 'saved → committed → visible' }, ...dots, stage);
}

function refused(): HTMLElement {
  return h('span', { class: 'fate', 'data-stage': 'parked' }, 'not made');
}
