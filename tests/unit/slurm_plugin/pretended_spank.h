/*
 * Slurm's side of spank_elastic.c, pretended: an environment, a job control environment, and what was said to the user.
 *
 * The plugin is included as a whole, because its state is its own and each run has to begin without any.
 */
#ifndef PRETENDED_SPANK_H
#define PRETENDED_SPANK_H

#include <stdarg.h>

#include "spank_elastic.c"

#define PRETENDED_VARIABLES 64
#define PRETENDED_LENGTH 600

struct pretended_environment {
	char lines[PRETENDED_VARIABLES][PRETENDED_LENGTH]; /* NAME=VALUE; "" where there is none */
};

static struct pretended_environment of_job, of_job_control;
static spank_context_t where;
static struct spank_option *registered[OPTIONS];
static int registered_count;
static char said[LINE_SIZE + 128]; /* the last thing that slurm_error was told */
static int said_count;

/* As before any job: nothing is known of the last run. */
static void begin(spank_context_t context)
{
	memset(&of_job, 0, sizeof(of_job));
	memset(&of_job_control, 0, sizeof(of_job_control));
	memset(values, 0, sizeof(values));
	memset(bad_argument, 0, sizeof(bad_argument));
	max_workers = FLEXO_NUMBER_MAX;
	registered_count = said_count = 0;
	said[0] = '\0';
	where = context;
}

static char *variable(struct pretended_environment *environment, const char *name)
{
	size_t length = strlen(name);

	for (int i = 0; i < PRETENDED_VARIABLES; i++)
		if (strncmp(environment->lines[i], name, length) == 0 && environment->lines[i][length] == '=')
			return environment->lines[i];
	return NULL;
}

static const char *value_of(struct pretended_environment *environment, const char *name)
{
	char *line = variable(environment, name);

	return line ? line + strlen(name) + 1 : NULL;
}

static spank_err_t set(struct pretended_environment *environment, const char *name, const char *value)
{
	char *line = variable(environment, name);

	for (int i = 0; !line && i < PRETENDED_VARIABLES; i++)
		if (environment->lines[i][0] == '\0')
			line = environment->lines[i];
	if (!line)
		return ESPANK_ERROR;
	snprintf(line, PRETENDED_LENGTH, "%s=%s", name, value);
	return ESPANK_SUCCESS;
}

static spank_err_t unset(struct pretended_environment *environment, const char *name)
{
	char *line = variable(environment, name);

	if (line)
		line[0] = '\0';
	return ESPANK_SUCCESS;
}

spank_context_t spank_context(void)
{
	return where;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	registered[registered_count++] = option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer, int size)
{
	const char *value = value_of(&of_job, name);

	(void)spank;
	if (!value)
		return ESPANK_ENV_NOEXIST;
	/* as Slurm does it: what fits is copied, without saying so otherwise than by its result */
	return snprintf(buffer, (size_t)size, "%s", value) < size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	(void)overwrite;
	return set(&of_job, name, value);
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	(void)spank;
	return unset(&of_job, name);
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	(void)overwrite;
	return set(&of_job_control, name, value);
}

spank_err_t spank_job_control_unsetenv(spank_t spank, const char *name)
{
	(void)spank;
	return unset(&of_job_control, name);
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(said, sizeof(said), format, arguments);
	va_end(arguments);
	said_count++;
}

/* What Slurm does with `--NAME=VALUE`. Negative: the command line is refused. */
static int say_option(int option, const char *value, int remote)
{
	for (int i = 0; i < registered_count; i++)
		if (registered[i]->val == option)
			return registered[i]->cb(option, registered[i]->has_arg ? value : NULL, remote);
	return -1;
}

#endif
