"""grasp_tune on Ray Tune: the search is a Tune searcher and its tasks are trials."""

from typing import TYPE_CHECKING

from grasp_tune.extras import lazy_names

if TYPE_CHECKING:
    from grasp_tune.executors.ray import RayBackend as RayBackend
    from grasp_tune.ray.searcher import GraspProgress as GraspProgress
    from grasp_tune.ray.searcher import GraspSearcher as GraspSearcher
    from grasp_tune.ray.searcher import PlanSearcher as PlanSearcher
    from grasp_tune.ray.searcher import load_result as load_result
    from grasp_tune.ray.trial import grasp_trainable as grasp_trainable
    from grasp_tune.ray.trial import optimizer as optimizer
    from grasp_tune.ray.trial import train as train

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__, "ray")
