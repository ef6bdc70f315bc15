"""What servers failed to answer is asked again when a finished run is resumed: one that had died may be back."""

from collections.abc import Callable

from specbench.measure.conversations import COLUMNS, Conversations
from specbench.measure.sample import Rows, untimed
from specbench.measure.served import ServerRows
from specbench.measure.work import Progress, Work, chunks, shuffled
from specbench.results import records
from specbench.results.recorder import Recorder
from specbench.results.stored import StoredRun
from specbench.results.unanswered import of_servers, unanswered


def ask_again(work: Work, recorder: Recorder, report: Callable[[Progress], bool], started: Callable[[], None]) -> bool:
    """Ask servers again what they failed to answer, and put what comes in its place; False if `report` stopped it.

    `started` is called if there is something to ask. They are asked at the run's pace, but not in turn with the other
    methods. Turns of a conversation go on from the answers on record. If it is stopped, nothing is replaced.
    """
    if not unanswered(StoredRun(recorder.folder)):
        return True
    started()
    names = list(work.clients)
    table = records.read_rows(recorder.folder, "samples", COLUMNS).to_pandas()
    table = table[~table.warmup & table.method.isin(names)]
    place = {(request.task, request.doc_id): number for number, request in enumerate(work.requests)}
    table["index"] = [
        row.repeat * len(work.requests) + place[row.task, row.doc_id] for row in table.itertuples(index=False)
    ]
    table["failed"] = table.finish == "error"
    missing = set(zip(table["index"][table.failed], table.method[table.failed], strict=True))
    conversations = Conversations(work)
    crews = {name: ServerRows(work, work.clients[name], conversations) for name in names}
    warm: set[str] = set()
    rows: list[Rows] = []
    for chunk in chunks(work):
        repeat, first = divmod(chunk.start, len(work.requests))
        conversations.forget()
        known = table[table["index"].isin(chunk) & ~table.failed]
        conversations.add(records.rows_of(known))
        for order, name in enumerate(shuffled(work, repeat, work.requests[first])):
            again = [index for index in chunk if (index, name) in missing]
            if not again:
                continue
            if name not in warm:
                crews[name].warm_up(range(again[0] % len(work.requests), len(work.requests)))
                warm.add(name)
            for index, decoded in crews[name].decode(again, repeat, order):
                rows.append(untimed(decoded) if work.plan.untimed else decoded)
                request = work.requests[index % len(work.requests)]
                if not report(Progress(len(rows), len(missing), request, decoded[1])):
                    return False
    samples, rounds = [sample for sample, _ in rows], [row for _, of_sample in rows for row in of_sample]
    recorder.replace(len(work.span), of_servers(names), samples, rounds)
    return True
