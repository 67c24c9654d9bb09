"""`report.html`: a run on one page that needs nothing but a browser."""

from vitlab.report.run.content import Compute as Compute
from vitlab.report.run.content import Data as Data
from vitlab.report.run.content import Judged as Judged
from vitlab.report.run.content import Mistake as Mistake
from vitlab.report.run.content import Model as Model
from vitlab.report.run.content import Point as Point
from vitlab.report.run.content import Report as Report
from vitlab.report.run.content import describe_data as describe_data
from vitlab.report.run.content import describe_model as describe_model
from vitlab.report.run.images import mistakes_in as mistakes_in
from vitlab.report.run.images import wrong_labels_in as wrong_labels_in
from vitlab.report.run.images import wrong_values_in as wrong_values_in
from vitlab.report.run.page import render as render
from vitlab.report.run.page import write_report as write_report

__all__ = [
    "Compute",
    "Data",
    "Judged",
    "Mistake",
    "Model",
    "Point",
    "Report",
    "describe_data",
    "describe_model",
    "mistakes_in",
    "render",
    "write_report",
    "wrong_labels_in",
    "wrong_values_in",
]
