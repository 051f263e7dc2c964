"""Inside a job: launcher, agent, leader, rendezvous, worker bootstrap. Shares only protos with the daemon."""
