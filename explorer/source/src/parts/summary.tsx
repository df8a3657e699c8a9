import type { Params } from "../source";
import { useQuery } from "../use_query";
import { Answer } from "./states";

interface SummaryAnswer {
  count: number;
  /** Whether the words mark the rows; else they are their commonest ones. */
  marking: boolean;
  words: { word: string; count: number }[];
  labels: { name: string; n_values: number; values: { value: string | null; count: number }[] }[];
}

const number = (value: number) => value.toLocaleString("en");

/** What some rows are: the words that set them apart from the others, and their labels. */
export function Summary({ params, total }: { params: Params; total: number }) {
  const found = useQuery<SummaryAnswer>("summary", params);
  return (
    <Answer of={found} what="what they are">
      {({ count, marking, words, labels }) => {
        const share = (part: number) => `${Math.round((100 * part) / Math.max(1, count))} %`;
        return (
          <dl class="summary">
            <dt>{marking ? "Words that set them apart" : "Commonest words"}</dt>
            <dd>{words.map((one) => <span key={one.word}><bdi>{one.word}</bdi> <span class="number">{number(one.count)}</span></span>)}{!words.length && <span class="muted">none</span>}</dd>
            {labels.map(({ name, n_values, values }) => [
              <dt key={name}>{name}</dt>,
              <dd key={`${name} values`}>
                {values.map((one) => <span key={String(one.value)}><bdi>{one.value ?? "none"}</bdi> <span class="number">{share(one.count)}</span></span>)}
                {n_values > values.length && <span class="muted">{`${number(n_values - values.length)} more`}</span>}
              </dd>,
            ])}
            {count < total && <dd class="note">{`Counted in ${number(count)} of them, drawn evenly.`}</dd>}
          </dl>
        );
      }}
    </Answer>
  );
}
