"""What an honest leader and an elastic job notice of somebody who abuses flexod (make bench-abuse)."""
