"""The demo of lending: inference traffic at a fast clock, and training that uses what it leaves idle."""
