-- Checks slurm_plugin/job_submit_elastic.lua on a mock of the table that slurmctld gives to Lua.
--
--   lua check_elastic.lua FOLDER               runs every check; the real slurmctld is in tests/slurm
--   lua check_elastic.lua FOLDER LIMIT VALUE.. prints for each value of --elastic the range recorded, or the refusal:
--                                              for comparison with the other two readers of the same ranges

local folder = arg[1]

local said -- what the user was told
local logged -- what slurmctld's log got

slurm = {
  SUCCESS = 0,
  ERROR = -1,
  NO_VAL = 4294967294,
  NO_VAL16 = 65534,
  log_user = function(...)
    said[#said + 1] = string.format(...)
  end,
  log_error = function(...)
    logged[#logged + 1] = string.format(...)
  end,
}

local partitions = { train = { flag_default = 1 }, flex = { flag_default = 0 }, infer = { flag_default = 0 },
  shared = { flag_default = 0 } }

-- A request as slurmctld shows it when `sbatch -n 2 --gpus-per-task=1` was said, changed as the check wants.
local function request(changes)
  local job = {
    num_tasks = 2,
    min_nodes = slurm.NO_VAL,
    max_nodes = slurm.NO_VAL,
    ntasks_per_node = slurm.NO_VAL16,
    het_job_offset = slurm.NO_VAL,
    tres_per_task = "gres:gpu:1",
    spank_job_env_size = 0,
  }
  for key, value in pairs(changes or {}) do
    job[key] = value ~= "absent" and value or nil
  end
  return job
end

-- slurmctld counts from 0, and knows more than our variables.
local function option(values)
  local lines, size = { [0] = "_SLURM_SPANK_OPTION_other_thing=(null)" }, 1
  for name, value in pairs(values) do
    lines[size] = name .. "=" .. value
    size = size + 1
  end
  return { spank_job_env = lines, spank_job_env_size = size }
end

local function asking(range, changes)
  local job = request(option({ FLEXO_ELASTIC = range }))
  for key, value in pairs(changes or {}) do
    job[key] = value ~= "absent" and value or nil
  end
  return job
end

local function load_module()
  said, logged = {}, {}
  return dofile(folder .. "/job_submit_elastic.lua")
end

local function submit(job, config)
  local elastic = load_module()
  for key, value in pairs(config or {}) do
    elastic.config[key] = value
  end
  return elastic.job_submit(job, partitions, 1000)
end

local function told()
  return table.concat(said, "\n")
end

local function expect(holds, what)
  if not holds then
    error(what .. (said[1] and "; the user was told: " .. told() or "; the user was told nothing")
      .. (logged[1] and "; logged: " .. table.concat(logged, "\n") or ""), 0)
  end
end

local function expect_accepted(job, token, config)
  expect(submit(job, config) == slurm.SUCCESS, "should be accepted")
  expect(job.admin_comment == token, "AdminComment should be " .. tostring(token) .. ", is "
    .. tostring(job.admin_comment))
end

local function expect_refused(job, words, config)
  local before = job.admin_comment
  expect(submit(job, config) == slurm.ERROR, "should be refused")
  expect(job.admin_comment == before, "AdminComment should stay as it was, is " .. tostring(job.admin_comment))
  expect(#logged == 0, "should be no fault of the file")
  for _, word in ipairs(words) do
    expect(told():find(word, 1, true), "should be told '" .. word .. "'")
  end
end

local checks = {}

function checks.a_job_without_the_options_is_not_touched()
  local job = request()
  local writes = 0
  local proxy = setmetatable({}, {
    __index = job,
    __newindex = function()
      writes = writes + 1
    end,
  })
  expect(submit(proxy) == slurm.SUCCESS, "should be accepted")
  expect(writes == 0 and #said == 0, "should be left alone")
end

function checks.a_job_without_the_options_costs_two_look_ups()
  local job, reads = request(), 0
  local proxy = setmetatable({}, {
    __index = function(_, key)
      reads = reads + 1
      return job[key]
    end,
  })
  expect(submit(proxy) == slurm.SUCCESS and reads <= 2, "should look at two fields, looked at " .. reads)
end

function checks.options_of_other_plugins_are_not_ours()
  expect_accepted(request(option({ OTHER = "1", XFLEXO_ELASTIC = "2-8", FLEXO_ELASTICX = "2-8" })), nil)
end

function checks.the_range_is_recorded()
  expect_accepted(asking("2-8"), "flexo{workers=2-8}")
  expect_accepted(asking("2-2"), "flexo{workers=2-2}")
end

function checks.leading_zeros_are_recorded_without()
  expect_accepted(asking("02-008"), "flexo{workers=2-8}")
end

function checks.every_option_is_recorded_in_one_order()
  local all = option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_BATCH = "32-256", FLEXO_ELASTIC_FUNGIBLE = "1" })
  expect_accepted(request(all), "flexo{workers=2-8;fungible;batch=32-256}")
  expect_accepted(request(option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_FUNGIBLE = "1" })),
    "flexo{workers=2-8;fungible}")
  expect_accepted(request(option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_BATCH = "32-256" })),
    "flexo{workers=2-8;batch=32-256}")
  local both = option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_BATCH = "32-256", FLEXO_ELASTIC_FUNGIBLE = "1",
    FLEXO_ELASTIC_HETEROGENEOUS = "1" })
  expect_accepted(request(both), "flexo{workers=2-8;fungible;heterogeneous;batch=32-256}")
end

function checks.a_sites_own_admin_comment_is_kept()
  expect_accepted(asking("2-8", { admin_comment = "project=42" }), "project=42 flexo{workers=2-8}")
end

function checks.a_token_that_is_there_already_is_refused()
  expect_refused(asking("2-8", { admin_comment = "flexo{workers=1-99}" }), { "AdminComment" })
end

function checks.a_range_that_cannot_be_is_refused_with_the_value_and_what_is_allowed()
  for _, value in ipairs({ "8-2", "0-3", "2", "2-", "-8", "a-b", " 2-8", "2-8 ", "+2-8", "2--8", "2-8x", "1.0-2.0" }) do
    expect_refused(asking(value), { "--elastic='" .. value .. "'", "from 1 to", "MIN-MAX" })
  end
  expect_refused(asking(""), { "--elastic=''", "missing" })
end

function checks.a_number_of_ten_digits_is_refused()
  expect_refused(asking("2-4294967298"), { "more than nine digits" })
  expect_refused(asking("2-18446744073709551624"), { "more than nine digits" })
end

function checks.a_range_over_the_sites_limit_is_refused_with_the_limit()
  expect_accepted(asking("2-64"), "flexo{workers=2-64}", { max_workers = 64 })
  expect_refused(asking("2-65"), { "'2-65'", "limit", "from 1 to 64" }, { max_workers = 64 })
end

function checks.hostile_values_are_refused_and_shown_harmlessly()
  local hostile = { '2-8"', "2-8'", "2-8}", "2-8;fungible", "2-8\n", "2-8\nflexo{workers=1-9}", "2-8\27[31m", "2-8\0",
    ("9"):rep(100000), "2-8" .. ("}"):rep(100000), "%s%n-%d", "2-8 flexo{workers=2-99}" }
  for _, value in ipairs(hostile) do
    expect_refused(asking(value), { "--elastic='" })
    expect(#told() < 400 and not told():find("[^ -~]"), "should be told in a short printable line")
  end
end

function checks.a_batch_range_that_cannot_be_is_refused_under_its_own_name()
  local job = request(option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_BATCH = "9-1" }))
  expect_refused(job, { "--elastic-batch='9-1'", "below the minimum" })
end

function checks.the_sites_limit_of_workers_does_not_bound_the_batch()
  local job = request(option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_BATCH = "32-4096" }))
  expect_accepted(job, "flexo{workers=2-8;batch=32-4096}", { max_workers = 64 })
end

function checks.the_other_options_need_elastic()
  expect_refused(request(option({ FLEXO_ELASTIC_FUNGIBLE = "1" })), { "--elastic-fungible needs --elastic=MIN-MAX" })
  expect_refused(request(option({ FLEXO_ELASTIC_HETEROGENEOUS = "1" })), { "--elastic-heterogeneous needs --elastic" })
  expect_refused(request(option({ FLEXO_ELASTIC_BATCH = "1-2" })), { "--elastic-batch needs --elastic=MIN-MAX" })
end

function checks.a_job_array_is_refused()
  expect_refused(asking("2-8", { array_inx = "0-3" }), { "job array" })
end

function checks.a_job_of_several_components_is_refused()
  expect_refused(asking("2-8", { het_job_offset = 0 }), { "heterogeneous" })
  expect_refused(asking("2-8", { het_job_offset = 1 }), { "heterogeneous" })
end

function checks.an_ordinary_request_that_is_not_the_minimum_is_refused_with_a_line_that_works()
  local example = "sbatch -n 2 --gpus-per-task=1 --elastic=2-8"
  expect_refused(asking("2-8", { num_tasks = 3 }), { "-n 2", "3 task", example })
  expect_refused(asking("2-8", { num_tasks = 1 }), { "1 task", example })
  expect_refused(asking("2-8", { num_tasks = 8 }), { "8 task", example })
end

function checks.without_n_the_job_has_one_task_a_node()
  expect_accepted(asking("1-8", { num_tasks = slurm.NO_VAL }), "flexo{workers=1-8}")
  expect_accepted(asking("2-8", { num_tasks = slurm.NO_VAL, min_nodes = 2, max_nodes = 2 }), "flexo{workers=2-8}")
  expect_refused(asking("2-8", { num_tasks = slurm.NO_VAL }), { "1 task" })
end

function checks.without_n_tasks_per_node_count()
  local job = asking("4-8", { num_tasks = slurm.NO_VAL, min_nodes = 2, max_nodes = 2, ntasks_per_node = 2 })
  expect_accepted(job, "flexo{workers=4-8}")
end

function checks.without_n_a_range_of_nodes_is_refused()
  expect_refused(asking("1-8", { num_tasks = slurm.NO_VAL, min_nodes = 1, max_nodes = 2 }), { "without -n" })
end

function checks.a_job_without_gpus_is_refused_unless_the_site_allows_it()
  expect_refused(asking("2-8", { tres_per_task = "absent" }), { "needs GPUs", "--gpus-per-task=1" })
  expect_refused(asking("2-8", { tres_per_task = "cpu:4" }), { "needs GPUs" })
  expect_refused(asking("2-8", { tres_per_task = "gres:gpu:0" }), { "needs GPUs" })
  expect_refused(asking("2-8", { tres_per_task = "absent", tres_per_node = "gres:shard:2" }), { "needs GPUs" })
  expect_accepted(asking("2-8", { tres_per_task = "absent" }), "flexo{workers=2-8}", { allow_cpu_only = true })
end

function checks.gpus_per_task_are_read_in_every_spelling_of_slurm()
  for _, request_of in ipairs({ "gres:gpu:2", "gres/gpu:2", "gres/gpu=2", "gres:gpu:a100:2", "gres/gpu:a100=2", "gpu",
    "gpu:a100", "gres:gpu:2080ti", "gres/gpu:1g.10gb:2", "gres:craynetwork:1,gres:gpu:1", "cpu:4,gres/gpu:1" }) do
    expect_accepted(asking("2-8", { tres_per_task = request_of }), "flexo{workers=2-8}")
  end
end

function checks.workers_on_two_kinds_of_gpus_are_refused()
  expect_refused(asking("2-8", { tres_per_task = "gres:gpu:a100:1,gres:gpu:v100:1" }), { "several kinds" })
end

function checks.a_count_of_gpus_that_cannot_be_read_is_refused()
  expect_refused(asking("2-8", { tres_per_task = "gres:gpu:2k" }), { "cannot read", "'gres:gpu:2k'" })
end

function checks.gpus_of_the_job_are_shared_evenly()
  local function job(gpus)
    return asking("2-8", { tres_per_task = "absent", tres_per_job = "gres:gpu:" .. gpus })
  end
  expect_accepted(job(2), "flexo{workers=2-8}")
  expect_accepted(job(4), "flexo{workers=2-8}")
  expect_refused(job(3), { "3 GPUs", "evenly", "2 tasks" })
  expect_refused(job(1), { "evenly" })
end

function checks.gpus_of_a_node_count_when_the_nodes_are_fixed()
  local function job(changes)
    local all = asking("4-8", { num_tasks = 4, tres_per_task = "absent", tres_per_node = "gres:gpu:2" })
    for key, value in pairs(changes) do
      all[key] = value
    end
    return all
  end
  expect_accepted(job({ min_nodes = 2, max_nodes = 2 }), "flexo{workers=4-8}")
  expect_accepted(job({ ntasks_per_node = 2 }), "flexo{workers=4-8}")
  expect_accepted(job({ min_nodes = 4, max_nodes = 0 }), "flexo{workers=4-8}")
  expect_accepted(job({ min_nodes = 1, max_nodes = 1, tres_per_node = "gres:gpu:4" }), "flexo{workers=4-8}")
  expect_refused(job({ min_nodes = 1, max_nodes = 1 }), { "evenly" })
  expect_refused(job({ min_nodes = 3, max_nodes = 3 }), { "evenly" })
end

function checks.gpus_of_a_node_are_refused_when_slurm_picks_the_nodes()
  local words = { "how many nodes Slurm picks", "sbatch -N 1 -n 2 --gres=gpu:2 --elastic=2-8" }
  expect_refused(asking("2-8", { tres_per_task = "absent", tres_per_node = "gres:gpu:2" }), words)
  expect_refused(asking("2-8", { tres_per_task = "absent", tres_per_node = "gres:gpu:2", min_nodes = 1, max_nodes = 2 }),
    words)
end

function checks.one_task_is_on_one_node()
  expect_accepted(asking("1-8", { num_tasks = 1, tres_per_task = "absent", tres_per_node = "gres:gpu:2" }),
    "flexo{workers=1-8}")
end

function checks.gpus_per_socket_are_refused()
  expect_refused(asking("2-8", { tres_per_task = "absent", tres_per_socket = "gres:gpu:1" }), { "per socket" })
end

function checks.in_a_satellite_partition_the_option_is_ignored_and_the_user_hears_of_it()
  for _, name in ipairs({ "flex", "borrowed", "flex,borrowed" }) do
    local job = asking("2-8", { partition = name, num_tasks = 1, tres_per_task = "absent" })
    expect(submit(job) == slurm.SUCCESS and job.admin_comment == nil, "should be an ordinary job")
    expect(told():find("ignored", 1, true) and told():find(name, 1, true), "should be told so")
  end
end

function checks.a_job_that_could_start_among_satellites_or_elsewhere_is_refused()
  expect_refused(asking("2-8", { partition = "train,flex" }), { "'train,flex'", "flex, borrowed" })
end

function checks.a_default_partition_of_satellites_counts_as_named()
  local elastic = load_module()
  elastic.config.satellite_partitions = { "train" }
  local job = asking("2-8")
  expect(elastic.job_submit(job, partitions, 1000) == slurm.SUCCESS and not job.admin_comment, "should be ignored")
end

function checks.clients_without_spank_say_it_in_the_comment()
  local function job(comment)
    return request({ comment = comment })
  end
  expect_accepted(job("elastic=2-8"), "flexo{workers=2-8}")
  expect_accepted(job("run 7; elastic=2-8; of bob"), "flexo{workers=2-8}")
  expect_accepted(job("elastic-batch=32-256 elastic-fungible;elastic=2-8"), "flexo{workers=2-8;fungible;batch=32-256}")
  expect_accepted(job("elastic=2-8 elastic-heterogeneous"), "flexo{workers=2-8;heterogeneous}")
end

function checks.the_same_is_checked_in_a_comment()
  local function job(comment, changes)
    changes = changes or {}
    changes.comment = comment
    return request(changes)
  end
  expect_refused(job("elastic=8-2"), { "'8-2'", "below the minimum" })
  expect_refused(job("elastic="), { "missing" })
  expect_refused(job('elastic=2-8"}'), { "'2-8\"}'" })
  expect_refused(job("elastic-fungible"), { "needs --elastic" })
  expect_refused(job("elastic=2-8 elastic-batch=x"), { "--elastic-batch='x'" })
  expect_refused(job("elastic=2-8", { array_inx = "1-2" }), { "job array" })
  expect_refused(job("elastic=2-8", { num_tasks = 3 }), { "3 task" })
  expect_refused(job("elastic=2-65"), { "limit" }, { max_workers = 64 })
end

function checks.a_comment_of_the_users_own_is_not_disturbed()
  for _, comment in ipairs({ "", "elastic", "an elastic beam, E=2-8", "elasticity=2-8", "inelastic=2-8", "my-elastic=2-8",
    "elastics-fungible", "elastic-fungible-not", "elastic-heterogeneous=1", "elastic-batches=1-2", "Elastic=2-8",
    "flexo{workers=2-8}", "flexo-satellite base=7 restart=0 grant=g1 workers=2", ("elastic "):rep(5000) }) do
    expect_accepted(request({ comment = comment }), nil)
  end
end

function checks.a_comment_that_contradicts_itself_or_the_options_is_refused()
  expect_refused(request({ comment = "elastic=2-8 elastic=2-9" }), { "'2-8'", "'2-9'" })
  expect_refused(asking("2-8", { comment = "elastic=2-9" }), { "'2-8'", "'2-9'" })
  expect_accepted(asking("2-8", { comment = "elastic=2-8 elastic-fungible" }), "flexo{workers=2-8;fungible}")
end

function checks.a_fault_of_this_file_refuses_the_elastic_job_only_and_is_logged()
  local elastic = load_module()
  elastic.config.satellite_partitions = nil
  expect(elastic.job_submit(asking("2-8"), partitions, 1000) == slurm.ERROR, "should be refused")
  expect(#logged == 1 and told():find("administrator", 1, true), "should be logged, and the user sent on")
  expect(elastic.job_submit(request(), partitions, 1000) == slurm.SUCCESS, "should let other jobs pass")
end

local function modify(changes, admin_comment, config)
  local elastic = load_module()
  for key, value in pairs(config or {}) do
    elastic.config[key] = value
  end
  for _, key in ipairs({ "num_tasks", "min_nodes", "max_nodes" }) do
    changes[key] = changes[key] or slurm.NO_VAL
  end
  return elastic.job_modify(changes, { admin_comment = admin_comment }, partitions, 1000)
end

function checks.the_request_of_an_elastic_job_stays_as_it_was_checked()
  for word, changes in pairs({
    tasks = { num_tasks = 3 },
    nodes = { min_nodes = 2 },
    GPUs = { tres_per_node = "gres:gpu:4" },
    satellites = { partition = "flex" },
  }) do
    expect(modify(changes, "project=42 flexo{workers=2-8}") == slurm.ERROR, "should be refused")
    expect(told():find(word, 1, true), "should be told of the " .. word)
    expect(modify(changes, "project=42") == slurm.SUCCESS, "should be nobody's business in another job")
    expect(modify(changes, nil) == slurm.SUCCESS, "should be nobody's business in another job")
  end
end

function checks.everything_else_of_an_elastic_job_may_change()
  expect(modify({ time_limit = 10 }, "flexo{workers=2-8}") == slurm.SUCCESS, "should be accepted")
  expect(modify({ partition = "infer" }, "flexo{workers=2-8}") == slurm.SUCCESS, "should be accepted")
end

local BORROWED = { borrowed_partition = "borrowed" }

local function fungible(changes)
  local job = request(option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_FUNGIBLE = "1" }))
  job.script, job.requeue = "#!/bin/sh", slurm.NO_VAL16
  for key, value in pairs(changes or {}) do
    job[key] = value ~= "absent" and value or nil
  end
  return job
end

function checks.a_fungible_base_may_start_on_borrowed_servers_where_the_site_says_so()
  for named, expected in pairs({ absent = "train,borrowed", infer = "infer,borrowed",
    ["train,infer"] = "train,infer,borrowed", ["train,borrowed"] = "train,borrowed", borrowed = "borrowed" }) do
    local job = fungible({ partition = named })
    expect_accepted(job, "flexo{workers=2-8;fungible}", BORROWED)
    expect(job.partition == expected, "should start in " .. expected .. ", not in " .. tostring(job.partition))
    expect(job.requeue == 1, "should be requeued when the servers are needed back")
  end
end

function checks.a_heterogeneous_base_may_start_wherever_a_fungible_one_may()
  local job = fungible({ spank_job_env = { [0] = "FLEXO_ELASTIC=2-8", "FLEXO_ELASTIC_HETEROGENEOUS=1" } })
  expect_accepted(job, "flexo{workers=2-8;heterogeneous}", BORROWED)
  expect(job.partition == "train,borrowed" and job.requeue == 1, "should start there and be requeued from there")
  expect(modify({ partition = "borrowed" }, "flexo{workers=2-8;heterogeneous}", BORROWED) == slurm.SUCCESS,
    "should be moved there later")
end

function checks.elsewhere_a_fungible_base_stays_where_it_was_submitted()
  local job = fungible()
  expect_accepted(job, "flexo{workers=2-8;fungible}")
  expect(job.partition == nil and job.requeue == slurm.NO_VAL16, "should be left alone")
  expect_refused(fungible({ partition = "train,borrowed" }), { "'train,borrowed'" })
end

function checks.a_base_that_is_not_fungible_is_kept_off_borrowed_servers()
  local job = asking("2-8", { script = "#!/bin/sh" })
  expect_accepted(job, "flexo{workers=2-8}", BORROWED)
  expect(job.partition == nil, "should stay where it was submitted")
  expect_refused(asking("2-8", { partition = "train,borrowed" }), { "'train,borrowed'" }, BORROWED)
  expect_refused(asking("2-8", { partition = "borrowed" }), { "only satellites, --elastic-fungible" }, BORROWED)
  expect_refused(fungible({ partition = "train,flex" }), { "'train,flex'" }, BORROWED)
end

function checks.a_base_that_cannot_be_requeued_is_kept_off_borrowed_servers()
  for word, changes in pairs({ ["--no-requeue"] = { requeue = 0 }, salloc = { script = "absent" } }) do
    local job = fungible(changes)
    expect_accepted(job, "flexo{workers=2-8;fungible}", BORROWED)
    expect(job.partition == nil and told():find(word, 1, true), "should stay off them and the user hear why")
    changes.partition = "train,borrowed"
    expect_refused(fungible(changes), { word, "'train,borrowed'" }, BORROWED)
  end
end

function checks.a_batch_script_that_may_have_forgotten_flexo_run_is_let_in_with_a_hint()
  expect_accepted(asking("2-8", { script = "#!/bin/sh\ntorchrun train.py" }), "flexo{workers=2-8}")
  expect(told():find("flexo run", 1, true), "the user should hear of flexo run")
  for _, script in ipairs({ "#!/bin/sh\nflexo run torchrun train.py", "#!/bin/sh\n/opt/flexo/bin/start", "absent" }) do
    expect_accepted(asking("2-8", { script = script }), "flexo{workers=2-8}")
    expect(told() == "", "should be let in without a word: " .. script)
  end
end

function checks.ordinary_jobs_are_kept_off_borrowed_servers_and_satellites_are_not()
  for _, named in ipairs({ "borrowed", "train,borrowed" }) do
    expect_refused(request({ partition = named }), { "only satellites" }, BORROWED)
    expect_refused(request({ partition = named, comment = "a flexo-satellite " }), { "only satellites" }, BORROWED)
    expect_accepted(request({ partition = named }), nil)
  end
  expect_accepted(request({ partition = "train" }), nil, BORROWED)
  local satellite = request({ partition = "borrowed", comment = "flexo-satellite base=7 restart=0 grant=g1 workers=2" })
  expect_accepted(satellite, nil, BORROWED)
end

function checks.only_fungible_jobs_move_to_borrowed_servers_later()
  local there = { partition = "borrowed" }
  expect(modify(there, "flexo{workers=2-8;fungible}", BORROWED) == slurm.SUCCESS, "should be accepted")
  expect(there.requeue == 1, "should be requeued when the servers are needed back")
  for _, token in ipairs({ "flexo{workers=2-8}", "project=42", "" }) do
    expect(modify({ partition = "train,borrowed" }, token, BORROWED) == slurm.ERROR, "should be refused")
  end
  expect(modify({ partition = "train" }, "project=42", BORROWED) == slurm.SUCCESS, "should be accepted")
  expect(modify({ partition = "borrowed" }, "flexo{workers=2-8;fungible}") == slurm.ERROR, "should be refused")
end

-- What `sbatch -n 1` asks for: the base of an opportunistic job.
local function opportunistic(value, changes)
  local job = request(option({ FLEXO_ELASTIC_OPPORTUNISTIC = value }))
  job.num_tasks, job.tres_per_task = 1, nil
  for key, changed in pairs(changes or {}) do
    job[key] = changed ~= "absent" and changed or nil
  end
  return job
end

function checks.an_opportunistic_job_is_recorded_with_its_word()
  expect_accepted(opportunistic("02-8"), "flexo{workers=2-8;opportunistic}")
  expect_accepted(opportunistic("2-8,auto"), "flexo{workers=2-8;opportunistic=auto}")
  local job = opportunistic("2-8,auto", option({ FLEXO_ELASTIC_OPPORTUNISTIC = "2-8,auto", FLEXO_ELASTIC_BATCH = "8-64" }))
  expect_accepted(job, "flexo{workers=2-8;opportunistic=auto;batch=8-64}")
end

function checks.an_opportunistic_range_is_checked_like_any_other()
  for _, value in ipairs({ "8-2", "0-3", "2", "2-8,", "2-8,automatic", "2-8,auto,auto", ",auto", "2-8 ,auto", "auto" }) do
    expect_refused(opportunistic(value), { "--elastic-opportunistic='" .. value .. "'", "MIN-MAX", "2-8,auto" })
  end
  expect_refused(opportunistic("1-65"), { "limit", "64" }, { max_workers = 64 })
end

function checks.an_opportunistic_base_is_one_task_without_gpus()
  local example = "sbatch -n 1 -c 4 --mem=16G --elastic-opportunistic=1-4"
  expect_refused(opportunistic("1-4", { num_tasks = 2 }), { "2 tasks", example })
  expect_refused(opportunistic("1-4", { min_nodes = 2 }), { "2 nodes", example })
  for _, field in ipairs({ "tres_per_task", "tres_per_job", "tres_per_node", "tres_per_socket" }) do
    expect_refused(opportunistic("1-4", { [field] = "gres/gpu:1" }), { "GPUs", example })
  end
  expect_refused(opportunistic("1-4", { array_inx = "0-3" }), { "job array" })
  expect_refused(opportunistic("1-4", { het_job_offset = 0 }), { "several components" })
  expect_accepted(opportunistic("1-4", { num_tasks = slurm.NO_VAL, tres_per_task = "cpu:4" }),
    "flexo{workers=1-4;opportunistic}")
end

function checks.an_opportunistic_job_has_no_gpus_to_grow_on_or_to_share()
  for _, name in ipairs({ "ELASTIC_FUNGIBLE", "ELASTIC_HETEROGENEOUS", "ELASTIC_COHOST" }) do
    local job = opportunistic("1-4", option({ FLEXO_ELASTIC_OPPORTUNISTIC = "1-4", ["FLEXO_" .. name] = "1" }))
    expect_refused(job, { "exclude each other", "--elastic-opportunistic" })
  end
  local both = option({ FLEXO_ELASTIC_OPPORTUNISTIC = "1-4", FLEXO_ELASTIC = "1-4" })
  expect_refused(opportunistic("1-4", both), { "exclude each other", "--elastic " })
end

function checks.a_job_consents_to_share_its_gpus_whether_it_is_elastic_or_not()
  expect_accepted(request(option({ FLEXO_ELASTIC_COHOST = "1" })), "flexo{workers=2-2;cohost}")
  expect_accepted(request(option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_COHOST = "1" })), "flexo{workers=2-8;cohost}")
  local teaching = { cohost_accounts = { "teaching" } }
  local elastic_job = option({ FLEXO_ELASTIC = "2-8" })
  elastic_job.account = "teaching"
  expect_accepted(request(elastic_job), "flexo{workers=2-8;cohost}", teaching)
  elastic_job.account = "physics"
  expect_accepted(request(elastic_job), "flexo{workers=2-8}", teaching)
  elastic_job.account, elastic_job.default_account = nil, "teaching"
  expect_accepted(request(elastic_job), "flexo{workers=2-8;cohost}", teaching)
  local all = option({ FLEXO_ELASTIC = "2-8", FLEXO_ELASTIC_COHOST = "1", FLEXO_ELASTIC_BATCH = "32-256",
    FLEXO_ELASTIC_FUNGIBLE = "1" })
  expect_accepted(request(all), "flexo{workers=2-8;fungible;batch=32-256;cohost}")
end

function checks.consent_does_not_count_as_growing()
  local consenting = option({ FLEXO_ELASTIC_COHOST = "1" })
  consenting.num_tasks = 100
  expect_accepted(request(consenting), "flexo{workers=100-100;cohost}", { max_workers = 64 })
end

function checks.consent_without_gpus_or_of_many_jobs_is_refused()
  local function job(changes)
    local consenting = request(option({ FLEXO_ELASTIC_COHOST = "1" }))
    for key, value in pairs(changes) do
      consenting[key] = value ~= "absent" and value or nil
    end
    return consenting
  end
  expect_refused(job({ tres_per_task = "absent" }), { "asks for none", "--elastic-cohost ..." }, { allow_cpu_only = true })
  expect_refused(job({ array_inx = "0-3" }), { "job array" })
  expect_refused(job({ het_job_offset = 1 }), { "several components" })
  expect_refused(job({ num_tasks = slurm.NO_VAL, min_nodes = 1, max_nodes = 2 }), { "without -n", "--elastic-cohost ..." })
  expect_refused(request(option({ FLEXO_ELASTIC_COHOST = "1", FLEXO_ELASTIC_BATCH = "1-2" })), { "needs --elastic" })
end

function checks.the_words_of_sharing_are_read_from_a_comment_too()
  local function job(comment, changes)
    changes = changes or {}
    changes.comment = comment
    return request(changes)
  end
  expect_accepted(job("elastic-opportunistic=2-8,auto", { num_tasks = 1, tres_per_task = "absent" }),
    "flexo{workers=2-8;opportunistic=auto}")
  expect_accepted(job("elastic-cohost"), "flexo{workers=2-2;cohost}")
  expect_accepted(job("elastic=2-8;elastic-cohost"), "flexo{workers=2-8;cohost}")
  expect_refused(job("elastic-opportunistic=2-8"), { "--elastic-opportunistic=2-8" })
end

function checks.constraints_that_hold_for_each_node_are_accepted()
  for _, features in ipairs({ "a100", "a100&ib", "a100|h100", "(a100&ib)|h100" }) do
    expect_accepted(asking("2-8", { features = features }), "flexo{workers=2-8}")
  end
end

local CANNOT_BE_REPEATED = {
  { { features = "[rack1|rack2]" }, { "--constraint='[rack1|rack2]'", "one node" } },
  { { features = "a100*2" }, { "--constraint='a100*2'", "one node" } },
  { { reservation = "class42" }, { "--reservation='class42'", "grants no reserved nodes" } },
  { { licenses = "matlab:2" }, { "--licenses='matlab:2'", "job_licenses" } },
  { { shared = 2 }, { "--exclusive=user", "jobs of others" } },
  { { shared = 3 }, { "--exclusive=mcs", "jobs of others" } },
  { { mcs_label = "secret" }, { "--mcs-label=secret", "jobs of others" } },
  { { pn_min_tmp_disk = 4096 }, { "--tmp=4096" } },
}

function checks.requests_that_satellites_cannot_repeat_are_refused()
  for _, case in ipairs(CANNOT_BE_REPEATED) do
    expect_refused(asking("2-8", case[1]), case[2])
    local job = request(option({ FLEXO_ELASTIC_OPPORTUNISTIC = "1-4" }))
    job.num_tasks, job.tres_per_task = 1, nil
    for field, value in pairs(case[1]) do
      job[field] = value
    end
    expect_refused(job, case[2])
  end
  expect_refused(asking("2-8", { container = "/images/torch" }), { "--container=/images/torch", "outside" })
end

function checks.gres_other_than_gpus_are_refused()
  for _, field in ipairs({ "tres_per_node", "tres_per_socket", "tres_per_job" }) do
    expect_refused(asking("2-8", { [field] = "gres:nvme:2" }), { "gres:nvme:2", "no other GRES" })
    expect_accepted(asking("2-2", { [field] = "gres:nvme:2" }), "flexo{workers=2-2}")
  end
end

function checks.what_says_nothing_of_others_jobs_or_of_other_gres_is_accepted()
  for _, field in ipairs({
    { shared = 0 }, { shared = 1 }, { shared = slurm.NO_VAL16 }, { pn_min_tmp_disk = slurm.NO_VAL },
    { tres_per_node = "gres:none" }, { tres_per_task = "cpu=4,gres/gpu:1" },
  }) do
    expect_accepted(asking("2-8", field), "flexo{workers=2-8}")
  end
end

function checks.the_image_of_pyxis_is_refused_as_a_container_is()
  local image = { ["_SLURM_SPANK_OPTION_pyxis_container_image"] = "nvcr.io#torch", FLEXO_ELASTIC = "2-8" }
  expect_refused(request(option(image)), { "--container-image=nvcr.io#torch", "outside" })
  image.FLEXO_ELASTIC = nil
  expect_accepted(request(option(image)), nil)
end

function checks.a_job_that_never_has_satellites_may_ask_for_all_of_them()
  for _, case in ipairs(CANNOT_BE_REPEATED) do
    expect_accepted(asking("2-2", case[1]), "flexo{workers=2-2}")
    expect_accepted(request(case[1]), nil)
  end
end

function checks.licences_that_a_job_takes_once_are_the_administrators_to_name()
  local config = { job_licenses = { "scratch" } }
  expect_accepted(asking("2-8", { licenses = "scratch" }), "flexo{workers=2-8}", config)
  expect_accepted(asking("2-8", { licenses = "scratch:1" }), "flexo{workers=2-8}", config)
  for _, licenses in ipairs({ "scratch:1,matlab:2", "matlab|scratch", "scratchy", "scratch@server:1" }) do
    expect_refused(asking("2-8", { licenses = licenses }), { "--licenses=" }, config)
  end
end

function checks.what_satellites_cannot_repeat_does_not_come_later_either()
  for _, case in ipairs(CANNOT_BE_REPEATED) do
    local elastic = load_module()
    for token, wanted in pairs({ ["flexo{workers=2-8}"] = slurm.ERROR, ["flexo{workers=2-2;fungible}"] = slurm.SUCCESS,
      ["flexo{workers=2-2;opportunistic}"] = slurm.ERROR }) do
      local job = { admin_comment = token, partition = "train", user_id = 1000 }
      expect(elastic.job_modify(case[1], job, partitions, 1000) == wanted, "should go by the range in " .. token)
    end
  end
end

local SHARED = { shared_partition = "shared" }
local TAG = "flexo-satellite base=7 restart=0 grant=g1 workers=1"

local function satellite(changes)
  local job = request({ partition = "shared", comment = TAG, num_tasks = 1, tres_per_task = "absent",
    tres_per_node = "gres/spare:s1:1", priority = slurm.NO_VAL, requeue = slurm.NO_VAL16, user_id = 1000 })
  for key, value in pairs(changes or {}) do
    job[key] = value ~= "absent" and value or nil
  end
  return job
end

function checks.a_satellite_on_a_spare_gpu_is_held_and_never_requeued()
  local job = satellite()
  expect_accepted(job, nil, SHARED)
  expect(job.priority == 0 and job.requeue == 0, "should be held, and not be requeued")
end

function checks.several_satellites_in_one_submission_are_refused()
  expect_refused(satellite({ array_inx = "0-49" }), { "array" }, SHARED)
  expect_refused(satellite({ het_job_offset = 0 }), { "components" }, SHARED)
end

function checks.a_satellite_asks_for_spare_gpus_by_node_alone()
  for _, field in ipairs({ "tres_per_task", "tres_per_job", "tres_per_socket" }) do
    expect_refused(satellite({ [field] = "gres/spare:s0:1" }), { "spare", "--gres" }, SHARED)
    expect_refused(satellite({ [field] = "cpu=1,gres:SPARE" }), { "spare", "--gres" }, SHARED)
    expect_accepted(satellite({ [field] = "cpu=1" }), nil, SHARED)
  end
end

function checks.the_spare_gres_is_refused_to_everybody_else_in_every_spelling()
  for _, field in ipairs({ "tres_per_node", "tres_per_task", "tres_per_job", "tres_per_socket" }) do
    for _, spelling in ipairs({ "spare", "spare:1", "gres:spare:1", "gres/spare:s1:1", "gres/spare=1", "gres/spare:s0=1",
      "gres/gpu:1,gres/spare:1", "cpu:4,gres/spare:s0:1", "SPARE:1", "gres/gpu:1, spare" }) do
      expect_refused(request({ [field] = spelling }), { "spare" }, SHARED)
      expect_refused(request({ [field] = spelling, comment = TAG }), { "spare" }, SHARED)
      expect_refused(request({ [field] = spelling, partition = "train", comment = TAG }), { "spare" }, SHARED)
    end
    expect_accepted(request({ [field] = "gres/spares:1" }), nil, SHARED)
    expect_accepted(request({ [field] = "gres/spare:1" }), nil)
  end
end

function checks.the_shared_partition_is_for_satellites_alone()
  for _, job in ipairs({ satellite({ comment = "absent" }), satellite({ comment = "a flexo-satellite " }),
    satellite({ partition = "train,shared" }), satellite({ partition = "shared,flex" }),
    satellite({ comment = "absent", tres_per_node = "absent" }), asking("2-8", { partition = "shared" }) }) do
    expect_refused(job, { "shared" }, SHARED)
    expect(job.priority ~= 0, "should not be taken for a satellite")
  end
  expect_refused(asking("2-8", { partition = "train,shared" }), { "shared" }, SHARED)
end

function checks.a_default_partition_that_is_shared_lets_nobody_in()
  local elastic = load_module()
  elastic.config.shared_partition = "train"
  expect(elastic.job_submit(request(), partitions, 1000) == slurm.ERROR, "should be refused")
end

function checks.other_jobs_are_left_alone_where_gpus_are_shared()
  local job = request({ partition = "train", priority = slurm.NO_VAL })
  expect_accepted(job, nil, SHARED)
  expect(job.priority == slurm.NO_VAL and job.requeue == nil and #said == 0, "should be left alone")
  expect_accepted(asking("2-8"), "flexo{workers=2-8}", SHARED)
end

local function change(changes, job, by)
  local elastic = load_module()
  elastic.config.shared_partition = "shared"
  return elastic.job_modify(changes, job, partitions, by)
end

function checks.the_owner_of_a_held_satellite_neither_releases_nor_changes_it()
  for _, changes in ipairs({ { priority = slurm.NO_VAL }, { tres_per_node = "gres/spare:s0:1" }, { comment = "x" },
    { req_nodes = "t2" }, { partition = "train" }, { requeue = 1 } }) do
    expect(change(changes, satellite(), 1000) == slurm.ERROR, "should be refused to its owner")
    expect(change(changes, satellite(), 0) == slurm.SUCCESS, "should be left to root")
    expect(change(changes, satellite(), 64030) == slurm.SUCCESS, "should be left to flexod")
  end
end

function checks.no_job_comes_to_a_spare_gpu_by_a_change()
  local job = { partition = "train", user_id = 1000, comment = TAG }
  for _, by in ipairs({ 1000, 0 }) do
    expect(change({ partition = "shared" }, job, by) == slurm.ERROR, "should not move there")
    expect(change({ partition = "train,shared" }, job, by) == slurm.ERROR, "should not move there")
    expect(change({ tres_per_node = "gres/spare:s0:1" }, job, by) == slurm.ERROR, "should not get it")
    expect(change({ tres_per_task = "spare" }, job, by) == slurm.ERROR, "should not get it")
  end
  expect(change({ time_limit = 10 }, job, 1000) == slurm.SUCCESS, "should be left alone")
end

local function run_checks()
  local names, failed = {}, 0
  for name in pairs(checks) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local ok, problem = pcall(checks[name])
    if not ok then
      failed = failed + 1
      print("FAILED: " .. name .. ": " .. tostring(problem))
    end
  end
  print(string.format("job_submit_elastic.lua on %s: %d checks, %d failed", _VERSION, #names, failed))
  os.exit(failed == 0 and 0 or 1)
end

local function print_readings()
  for index = 3, #arg do
    local job = asking(arg[index], { num_tasks = tonumber(arg[index]:match("^[0-9]+")) })
    if submit(job, { max_workers = tonumber(arg[2]) }) == slurm.SUCCESS then
      print(job.admin_comment:match("^flexo{workers=(.*)}$"))
    else
      print((told():gsub("^flexo: ", "")))
    end
  end
end

if arg[2] then
  print_readings()
else
  run_checks()
end
