"""`report.html`: a run on one page that needs nothing but a browser."""

from vitlab.report.run.content import Compute as Compute
from vitlab.report.run.content import Data as Data
from vitlab.report.run.content import Mistake as Mistake
from vitlab.report.run.content import Model as Model
from vitlab.report.run.content import Point as Point
from vitlab.report.run.content import Report as Report
from vitlab.report.run.content import View as View
from vitlab.report.run.content import describe_data as describe_data
from vitlab.report.run.content import describe_model as describe_model
from vitlab.report.run.page import render as render
from vitlab.report.run.page import write_report as write_report

__all__ = [
    "Compute",
    "Data",
    "Mistake",
    "Model",
    "Point",
    "Report",
    "View",
    "describe_data",
    "describe_model",
    "render",
    "write_report",
]
