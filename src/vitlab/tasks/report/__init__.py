"""`report.html`: a run on one page that needs nothing but a browser."""

from vitlab.tasks.report.content import Compute as Compute
from vitlab.tasks.report.content import Data as Data
from vitlab.tasks.report.content import Judged as Judged
from vitlab.tasks.report.content import Mistake as Mistake
from vitlab.tasks.report.content import Model as Model
from vitlab.tasks.report.content import Point as Point
from vitlab.tasks.report.content import Report as Report
from vitlab.tasks.report.describe import describe_data as describe_data
from vitlab.tasks.report.describe import describe_model as describe_model
from vitlab.tasks.report.page import render as render
from vitlab.tasks.report.pictures import mistakes_in as mistakes_in
from vitlab.tasks.report.pictures import wrong_labels_in as wrong_labels_in
from vitlab.tasks.report.pictures import wrong_values_in as wrong_values_in
from vitlab.tasks.report.write import write_report as write_report

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
