"""Quickstart data at three scales, labelled by independent solvers."""

from hydragnn.scripts.demo.alloys import make_alloys
from hydragnn.scripts.demo.plates import make_plates
from hydragnn.scripts.demo.polycrystals import make_polycrystals
