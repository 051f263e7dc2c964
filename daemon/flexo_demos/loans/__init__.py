"""The demo of lending: inference traffic at a fast clock, and training on the servers that it leaves idle."""
