"""Extract on the workers of a Ray cluster, one for each of its GPUs, or CPUs if it has none.

python examples/ray_cluster.py CORPUS STORE.zarr MODEL [ADDRESS]

ADDRESS is "host:port" of the head as `ray start --head` prints it, "auto" (the default) for the cluster that runs on
this machine, or "local" to start one here. All machines need the same version of embstore, and the model under the same
path or name. Ray restarts a lost worker and repeats its tasks up to three times; else the same command resumes.
"""

import logging
import os
import pickle
import sys
from concurrent.futures import Executor, Future

import embstore as es


class RayExecutor(Executor):
    """Runs tasks on actors of a Ray cluster; the functions and their arguments are pickled."""

    def __init__(self, address="auto"):
        import ray

        self.ray = ray
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
        resources = ray.cluster_resources()
        kind = "GPU" if resources.get("GPU") else "CPU"
        self.n_workers = max(1, int(resources.get(kind, 1)))
        options = {"num_gpus": int(kind == "GPU"), "max_restarts": 3, "max_task_retries": 3}
        actor = ray.remote(Worker).options(num_cpus=1, scheduling_strategy="SPREAD", **options)
        self.workers = [actor.remote("cuda" if kind == "GPU" else "cpu") for _ in range(self.n_workers)]
        self.pending = {}

    def submit(self, function, /, *args, **kwargs):
        loads = list(self.pending.copy().values())
        number = min(range(self.n_workers), key=loads.count)
        future = Future()
        future.set_running_or_notify_cancel()
        self.pending[future] = number
        future.add_done_callback(lambda done: self.pending.pop(done, None))
        reference = self.workers[number].call.remote(self.ray.cloudpickle.dumps((function, args, kwargs)))
        reference.future().add_done_callback(lambda answer: hand_on(answer, future))
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        for future in list(self.pending) if wait and not cancel_futures else ():
            future.exception()
        for worker in self.workers:
            self.ray.kill(worker)
        self.ray.shutdown()


class Worker:
    """An actor that runs whatever it is given; results are pickled here, as Ray's own arrays are read-only."""

    def __init__(self, device):
        os.environ["EMBSTORE_WORKER_DEVICE"] = device  # of the models that the tasks load

    def call(self, call):
        function, args, kwargs = pickle.loads(call)
        return pickle.dumps(function(*args, **kwargs), pickle.HIGHEST_PROTOCOL)


def hand_on(answer, future):
    """Give a future what Ray answered; an error without the traceback that Ray adds to its text."""
    try:
        future.set_result(pickle.loads(answer.result()))
    except Exception as error:
        cause = getattr(error, "cause", error)
        lost = es.errors.ExecutorError(f"a worker was lost: {error}")
        future.set_exception(cause if isinstance(cause, Exception) else lost)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    corpus, store, model = sys.argv[1:4]
    with RayExecutor(*sys.argv[4:]) as executor:
        es.extract(es.plan(corpus, model=model, store=store), store, executor=executor)
