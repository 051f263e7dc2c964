"""Notices of events to a webhook and by mail, as the site has configured them."""
