import type { Occurrences } from "../answers";
import { useApp, type View } from "../app";
import { Concordance } from "../parts/concordance";
import { ExportMenu } from "../parts/export_menu";
import { Filters } from "../parts/filters";
import { LayerSlider } from "../parts/layer_slider";
import { PythonCall } from "../parts/python_call";
import { Answer, Empty } from "../parts/states";
import { Pager } from "../parts/table";
import { useQuery } from "../use_query";

const SIZE = 50;

function WordView() {
  const { index, values } = useApp();
  const params = { store: index, word: values.word, where: values.where, sort: values.sort, descending: values.desc ? true : undefined };
  const occurrences = useQuery<Occurrences>("occurrences", { ...params, offset: Number(values.offset) || 0, limit: SIZE });
  return (
    <>
      <div class="toolbar"><Filters /><LayerSlider /></div>
      <Answer of={occurrences} what="occurrences">
        {(answer) => (
          <>
            {answer.total === 0 && <Empty title="No occurrence">Change the word or the filter.</Empty>}
            <Concordance rows={answer.rows} columns={answer.columns} sortable />
            <div class="toolbar"><Pager total={answer.total} size={SIZE} /><ExportMenu name="occurrences" params={params} /></div>
            <PythonCall code={answer.python} />
          </>
        )}
      </Answer>
    </>
  );
}

export const word: View = { name: "word", title: "Word", needs: ["occurrences"], component: WordView };
