/*
 * A client of slurmctld that is none of Slurm's commands and loads no SPANK plugin, as REST and others are: for
 * tests of what they may say. other_client TASKS COMMENT ADMIN_COMMENT SPANK_LINE...; "" leaves a field out.
 */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
#define JOB_ID step_id.job_id
#else
#define JOB_ID job_id
#endif

static char *unless_empty(char *text)
{
	return *text ? text : NULL;
}

int main(int argc, char *argv[])
{
	static char *environment[] = { "PATH=/usr/bin:/bin", NULL };
	submit_response_msg_t *response = NULL;
	job_desc_msg_t job;
	int rc;

	if (argc < 4)
		return 2;
	slurm_init(NULL);
	slurm_init_job_desc_msg(&job);
	job.user_id = getuid();
	job.group_id = getgid();
	job.name = "other_client";
	job.script = "#!/bin/sh\ntrue\n";
	job.work_dir = "/tmp";
	job.std_out = "/dev/null";
	job.environment = environment;
	job.env_size = 1;
	job.priority = 0; /* held */
	job.num_tasks = (uint32_t)atoi(argv[1]);
	job.tres_per_task = "gres:gpu:1";
	job.comment = unless_empty(argv[2]);
	job.admin_comment = unless_empty(argv[3]);
	job.spank_job_env = argv + 4;
	job.spank_job_env_size = (uint32_t)(argc - 4);
	rc = slurm_submit_batch_job(&job, &response);
	if (response && response->job_submit_user_msg)
		fprintf(stderr, "%s\n", response->job_submit_user_msg);
	if (rc != SLURM_SUCCESS) {
		fprintf(stderr, "refused: %s\n", slurm_strerror(errno));
		return 1;
	}
	printf("%u\n", response->JOB_ID);
	return 0;
}
