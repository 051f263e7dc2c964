-- Checks, on the controller's side, jobs that ask to be elastic, and records what they asked for.
--
-- A site's job_submit.lua loads this file and calls job_submit() in one line (job_submit.lua.example). A job asks with
-- sbatch --elastic=2-8 (spank_elastic.c passes it on) or, from REST and other clients without SPANK, with
-- --comment="elastic=2-8". Clients may lie: everything is checked here, whatever the client has checked before.
--
-- A token, such as flexo{workers=2-8;fungible;batch=32-256}, is appended to the job's AdminComment, which a
-- user cannot write. If the site lends servers to whole jobs (borrowed_partition), a fungible or
-- heterogeneous job also gets the borrowed partition, and Requeue. If the site shares GPUs (shared_partition),
-- a satellite in that partition is held. Nothing else of a job is changed. A job that does not ask to be
-- elastic costs two look-ups, or three with borrowed_partition, or eight with shared_partition.

local elastic = {}

-- Settings that a site may change here, or in its job_submit.lua after loading this file.
elastic.config = {
  -- Partitions of satellites. In these, the options are ignored.
  satellite_partitions = { "flex", "borrowed", "borrowed-flex" },
  -- The partition of borrowed servers, one of the above. If it is set, the bases of --elastic-fungible and
  -- --elastic-heterogeneous jobs may start there as well, on the GPUs that are there. Such a job starts there
  -- or in a partition that it asked for, wherever there is room first. The partition refuses all other jobs
  -- but satellites. nil: satellites alone use borrowed servers. Leave it nil if slurm.conf fixes the
  -- partition's nodes: nothing would keep bases off servers that are not lent.
  borrowed_partition = nil,
  -- The partition for satellites of opportunistic jobs, such as "shared". If it is set, they alone get in, and
  -- they alone may ask for the GRES spare, which opens a GPU beside the job that holds it. The comment by which
  -- this file knows a satellite is no proof, since users write comments. So each job that gets in is held
  -- (priority 0), and job_modify() lets its owner neither release nor change it: Slurm alone would let them
  -- (JobHeldUser). flexod releases only jobs that match a grant of its own. Lua is not a limit: set
  -- MaxTRESPerJob=gres/spare=0 on all other QOSes as well (docs/howto/share-gpus-on-slurm.md). nil: no GPUs are shared.
  shared_partition = nil,
  -- Accounts whose elastic jobs all let opportunistic jobs use their GPUs, such as { "teaching" }. Jobs of other
  -- accounts say --elastic-cohost, and so do jobs of these that are not elastic.
  cohost_accounts = {},
  -- The largest MAX of --elastic and --elastic-opportunistic; nil: no limit. plugstack.conf repeats it, so that
  -- users hear of it sooner.
  max_workers = nil,
  -- Whether an elastic job may do without GPUs.
  allow_cpu_only = false,
  -- Licences that a job takes once, however many workers it has, such as { "scratch" } for a file system: an elastic
  -- job may ask for these. The base holds them, and satellites take none. Elastic jobs with other licences are refused.
  job_licenses = {},
}

local NUMBER_MAX = 999999999 -- as in range.h
local SHOWN_MAX = 40 -- characters of a value that a message repeats at most
local TOKEN_MARK = "flexo{"

local EXAMPLE = "sbatch -n %d --gpus-per-task=1 %s ..." -- with tasks and options
local OPPORTUNISTIC_EXAMPLE = "sbatch -n 1 -c 4 --mem=16G --elastic-opportunistic=%s ..."
local AUTO = ",auto"
local SPARE = "spare" -- the GRES of gres.conf (Name=spare)
local SHARED_WITH_USER, SHARED_WITH_MCS = 2, 3 -- values of job_desc.shared: --exclusive=user and --exclusive=mcs
-- What may stand among GRES in a request beside others: Slurm itself writes craynetwork on Cray systems.
local NO_OTHER_GRES = { gpu = true, none = true, cpu = true, mem = true, craynetwork = true }
local SPARE_WORD = "%f[%w_%-]" .. SPARE .. "%f[^%w_%-]"
local PYXIS_IMAGE = "^_SLURM_SPANK_OPTION_pyxis_container_image=(.*)$" -- how sbatch passes --container-image on

-- An error raised with refuse() is a message for the user; every other error is a fault of this file.
local function refuse(format, ...)
  error({ refusal = string.format(format, ...) }, 0)
end

-- `text`, shortened for a message, with ? for characters that a terminal or a log should not see.
local function shown(text)
  local printable = text:sub(1, SHOWN_MAX):gsub("[^ -~]", "?")
  return "'" .. printable .. (#text > SHOWN_MAX and "..." or "") .. "'"
end

-- `number`, or nil if the job does not set it: slurmctld passes nil or NO_VAL, whose value depends on the
-- field's width.
local function said(number)
  if number == nil or number == slurm.NO_VAL or number == slurm.NO_VAL16 then
    return nil
  end
  return number
end

-- "2-8" -> {min = 2, max = 8}; refuses what the option itself refuses. `word`: a word that may stand behind the
-- range, such as ",auto".
local function parse_range(option, text, limit, word)
  limit = limit or NUMBER_MAX
  local whole = text
  local function wrong(what)
    refuse("%s=%s: %s; allowed is MIN-MAX, two whole numbers from 1 to %d, MIN not above MAX, such as 2-8%s",
      option, shown(whole), what, limit, word and ", or 2-8" .. word or "")
  end
  local has_word = word ~= nil and text:sub(-#word) == word
  if has_word then
    text = text:sub(1, -#word - 1)
  end
  if text == "" then
    wrong("the value is missing")
  end
  local low, high = text:match("^([0-9]+)%-([0-9]+)$")
  if not low then
    wrong("this is not a range MIN-MAX")
  end
  if #low > 9 or #high > 9 then
    wrong("a number has more than nine digits")
  end
  local range = { min = tonumber(low), max = tonumber(high) }
  if range.min < 1 then
    wrong("the minimum is 1")
  elseif range.max < range.min then
    wrong("the maximum is below the minimum")
  elseif range.max > limit then
    wrong("the maximum is above this site's limit")
  end
  range.text = string.format("%d-%d", range.min, range.max)
  range.has_word = has_word
  return range
end

-- The job's request, as raw strings under the keys elastic, fungible, heterogeneous, batch, opportunistic and
-- cohost; nil without a request.
local function asked_by_option(job_desc)
  if (job_desc.spank_job_env_size or 0) == 0 then
    return nil
  end
  local keys = { FLEXO_ELASTIC = "elastic", FLEXO_ELASTIC_FUNGIBLE = "fungible",
    FLEXO_ELASTIC_HETEROGENEOUS = "heterogeneous", FLEXO_ELASTIC_BATCH = "batch",
    FLEXO_ELASTIC_OPPORTUNISTIC = "opportunistic", FLEXO_ELASTIC_COHOST = "cohost" }
  local asked
  for _, line in pairs(job_desc.spank_job_env or {}) do
    local name, value = line:match("^([^=]*)=(.*)$")
    if keys[name] then
      asked = asked or {}
      asked[keys[name]] = value
    end
  end
  return asked
end

-- The same, read from the job's comment. Only whole words count: other text about elasticity is no request.
local function asked_by_comment(job_desc)
  local comment = job_desc.comment
  if not comment or not comment:find("elastic", 1, true) then
    return nil
  end
  local asked
  local function ask(key, value)
    asked = asked or {}
    if asked[key] and asked[key] ~= value then
      refuse("the comment says two different things: %s and %s", shown(asked[key]), shown(value))
    end
    asked[key] = value
  end
  for word in comment:gmatch("[^%s;]+") do
    if word == "elastic-fungible" or word == "elastic-heterogeneous" or word == "elastic-cohost" then
      ask(word:match("^elastic%-(.*)$"), "1")
    else
      local name, value = word:match("^(elastic[a-z-]*)=(.*)$")
      if name == "elastic" then
        ask("elastic", value)
      elseif name == "elastic-batch" or name == "elastic-opportunistic" then
        ask(name:match("^elastic%-(.*)$"), value)
      end
    end
  end
  return asked
end

-- The request of options and comment together. They may repeat each other, but not contradict each other.
local function asked_for(job_desc)
  local by_option, by_comment = asked_by_option(job_desc), asked_by_comment(job_desc)
  if not by_option or not by_comment then
    return by_option or by_comment
  end
  for key, value in pairs(by_comment) do
    if by_option[key] and by_option[key] ~= value then
      refuse("the options say %s and the comment says %s; say it once", shown(by_option[key]), shown(value))
    end
    by_option[key] = value
  end
  return by_option
end

local function contains(names, wanted)
  for _, name in ipairs(names) do
    if name == wanted then
      return true
    end
  end
  return false
end

local function is_satellite_partition(name)
  return name == elastic.config.shared_partition or contains(elastic.config.satellite_partitions, name)
end

-- The partitions that the job may start in. If the job names none, Slurm takes the default partition.
local function partitions_of(job_desc, part_list)
  local names = {}
  for name in (job_desc.partition or ""):gmatch("[^,]+") do
    names[#names + 1] = name
  end
  if #names == 0 then
    for name, partition in pairs(part_list or {}) do
      if partition.flag_default == 1 then
        names[1] = name
      end
    end
  end
  return names
end

-- How many of the partitions in `names` are satellites' ("none", "some" or "all"); the partition `open` does
-- not count.
local function satellite_share(names, open)
  local satellites = 0
  for _, name in ipairs(names) do
    if name ~= open and is_satellite_partition(name) then
      satellites = satellites + 1
    end
  end
  if satellites == 0 then
    return "none"
  end
  return satellites == #names and "all" or "some"
end

-- GPUs in a request such as "gres:gpu:2", "gres/gpu:a100=1,cpu:4" or "gpu". Other resources do not matter here.
local function count_gpus(request)
  local gpus, kinds = 0, 0
  for item in (request or ""):gmatch("[^,]+") do
    local rest = item:gsub("^gres[:/]", "")
    if rest == "gpu" or rest:find("^gpu[:=]") then
      local count = rest:match("[:=](%d+)$")
      if not count and rest:find("[:=]%d+[kKmMgGtTpP]$") then
        refuse("cannot read the number of GPUs in %s", shown(item))
      end
      gpus = gpus + tonumber(count or 1)
      kinds = kinds + 1
    end
  end
  if kinds > 1 then
    refuse("the request names several kinds of GPUs (%s), and all workers of a job have the same", shown(request))
  end
  return gpus
end

-- The number of nodes if the request fixes it, else nil. There are never more nodes than tasks.
local function fixed_nodes(job_desc, tasks)
  local low, high, per_node = said(job_desc.min_nodes), said(job_desc.max_nodes), said(job_desc.ntasks_per_node)
  if not high or high == 0 or high > tasks then
    high = tasks
  end
  if (low or 1) >= high then
    return high
  elseif per_node and per_node > 0 and tasks % per_node == 0 then
    return tasks / per_node
  end
  return nil
end

-- GPUs of each task if the request is for `gpus` GPUs per node.
local function gpus_per_task_by_node(job_desc, tasks, gpus, workers)
  local nodes = fixed_nodes(job_desc, tasks)
  if not nodes then
    refuse("%d GPUs per node for %d tasks depend on how many nodes Slurm picks; say --gpus-per-task, or fix the "
      .. "nodes: sbatch -N 1 -n %d --gres=gpu:%d %s ...", gpus, tasks, tasks, tasks, workers.options)
  end
  if tasks % nodes ~= 0 or gpus % (tasks / nodes) ~= 0 then
    refuse("%d GPUs on each of %d nodes cannot be shared evenly by %d tasks; an example that works: " .. EXAMPLE,
      gpus, nodes, tasks, tasks, workers.options)
  end
  return gpus / (tasks / nodes)
end

local function gpus_per_task(job_desc, tasks, workers)
  local per_task = count_gpus(job_desc.tres_per_task)
  if per_task > 0 then
    return per_task
  end
  local per_job = count_gpus(job_desc.tres_per_job)
  if per_job > 0 then
    if per_job % tasks ~= 0 then
      refuse("%d GPUs cannot be shared evenly by %d tasks; an example that works: " .. EXAMPLE, per_job, tasks, tasks,
        workers.options)
    end
    return per_job / tasks
  end
  if count_gpus(job_desc.tres_per_socket) > 0 then
    refuse("GPUs per socket do not say how many a worker gets; an example that works: " .. EXAMPLE, tasks,
      workers.options)
  end
  local per_node = count_gpus(job_desc.tres_per_node)
  if per_node > 0 then
    return gpus_per_task_by_node(job_desc, tasks, per_node, workers)
  end
  return 0
end

-- The number of tasks; without -n Slurm starts one a node, or as many as --ntasks-per-node says.
local function tasks_of(job_desc, example)
  local tasks, low, high = said(job_desc.num_tasks), said(job_desc.min_nodes), said(job_desc.max_nodes)
  if tasks then
    return tasks
  elseif high and high ~= 0 and high ~= (low or 1) then
    refuse("without -n the number of tasks depends on how many nodes Slurm picks; an example that works: %s", example)
  end
  return (low or 1) * (said(job_desc.ntasks_per_node) or 1)
end

-- A request of flexo's is for one job. `what`: what an array cannot do, such as "be elastic".
local function check_one_job(job_desc, what)
  if job_desc.array_inx and job_desc.array_inx ~= "" then
    refuse("a job array cannot %s; submit one job for each index", what)
  end
  if said(job_desc.het_job_offset) then
    refuse("a job of several components (Slurm's heterogeneous jobs, ':') cannot %s", what)
  end
end

-- The ordinary request must be the minimum: the base of an elastic job is an ordinary job of MIN workers.
local function elastic_workers(job_desc, asked)
  local workers = parse_range("--elastic", asked.elastic, elastic.config.max_workers)
  workers.options = "--elastic=" .. workers.text
  check_one_job(job_desc, "be elastic")
  local tasks = tasks_of(job_desc, EXAMPLE:format(workers.min, workers.options))
  if tasks ~= workers.min then
    refuse("--elastic=%s needs the minimum as the ordinary request (-n %d), and this one is for %d task(s); "
      .. "an example that works: " .. EXAMPLE, workers.text, workers.min, tasks, workers.min, workers.options)
  end
  if gpus_per_task(job_desc, tasks, workers) == 0 and not elastic.config.allow_cpu_only then
    refuse("an elastic job needs GPUs for its workers, and this one asks for none; an example that works: " .. EXAMPLE,
      workers.min, workers.options)
  end
  return workers
end

-- A job that shares its GPUs without being elastic has as many workers as tasks, and keeps them.
local function cohost_workers(job_desc)
  check_one_job(job_desc, "share its GPUs")
  local options = "--elastic-cohost"
  local tasks = tasks_of(job_desc, EXAMPLE:format(2, options))
  local workers = { min = tasks, max = tasks, options = options, text = string.format("%d-%d", tasks, tasks) }
  if gpus_per_task(job_desc, tasks, workers) == 0 then
    refuse("--elastic-cohost shares the job's GPUs, and this job asks for none; an example that works: " .. EXAMPLE,
      tasks, options)
  end
  return workers
end

-- The base of an opportunistic job holds the leader and, on CPUs alone, no worker. All workers are satellites.
local function opportunistic_workers(job_desc, asked)
  local workers = parse_range("--elastic-opportunistic", asked.opportunistic, elastic.config.max_workers, AUTO)
  check_one_job(job_desc, "be opportunistic")
  local example = OPPORTUNISTIC_EXAMPLE:format(workers.text)
  local tasks, wrong = tasks_of(job_desc, example), nil
  if tasks ~= 1 then
    wrong = tasks .. " tasks"
  elseif (said(job_desc.min_nodes) or 1) > 1 then
    wrong = job_desc.min_nodes .. " nodes"
  end
  for _, field in ipairs({ "tres_per_task", "tres_per_job", "tres_per_node", "tres_per_socket" }) do
    if count_gpus(job_desc[field]) > 0 then
      wrong = wrong or "GPUs"
    end
  end
  if wrong then
    refuse("an opportunistic job asks for one task on one node and no GPUs, and this one asks for %s; its workers, "
      .. "each with the job's CPUs and memory, use GPUs of other jobs; an example that works: %s", wrong, example)
  end
  return workers
end

-- The container that the job asks to start in, as its option; nil: none.
local function container_of(job_desc)
  if (job_desc.container or "") ~= "" then
    return "--container=" .. job_desc.container
  end
  for _, line in pairs((job_desc.spank_job_env_size or 0) > 0 and job_desc.spank_job_env or {}) do
    local image = line:match(PYXIS_IMAGE)
    if image then
      return "--container-image=" .. image
    end
  end
  return nil
end

-- A GRES other than GPUs that the job asks for, as Slurm writes it; nil: none. Types and counts do not matter.
local function other_gres(request)
  for _, field in ipairs({ "tres_per_node", "tres_per_task", "tres_per_job", "tres_per_socket" }) do
    for item in (request[field] or ""):gmatch("[^,]+") do
      local name = item:gsub("^gres[:/]", ""):match("^[^:=]*")
      if not NO_OTHER_GRES[name] then
        return item
      end
    end
  end
  return nil
end

-- Whom the job lets share its nodes, as its option; nil: others decide.
local function companions_of(request)
  local shared = said(request.shared)
  if shared == SHARED_WITH_USER or shared == SHARED_WITH_MCS then
    return shared == SHARED_WITH_USER and "--exclusive=user" or "--exclusive=mcs"
  elseif (request.mcs_label or "") ~= "" then
    return "--mcs-label=" .. request.mcs_label
  end
  return nil
end

-- Whether the job can ever have satellites.
local function has_satellites(workers, opportunistic)
  return opportunistic or workers.max > workers.min
end

-- Refuses requests that satellites cannot repeat. What they do repeat is read when the job starts
-- (horovod_elastic/platforms/slurm/inherited.py). `request`: a job's request, or the changes to one.
local function check_inherited(request)
  local features, reservation = request.features or "", request.reservation or ""
  if features:find("[%[%]*]") then
    refuse("--constraint=%s is about several nodes together, and a satellite has one node; allowed for an elastic "
      .. "job are features joined with & or |, such as --constraint='a100&ib'", shown(features))
  elseif reservation ~= "" then
    refuse("--reservation=%s: an elastic job grows outside of reservations, because flexod grants no reserved nodes; "
      .. "leave out --reservation, or submit a job that is not elastic", shown(reservation))
  end
  for license in (request.licenses or ""):gmatch("[^,;|%s]+") do
    if not contains(elastic.config.job_licenses, license:match("^[^:*]*")) then
      refuse("--licenses=%s: every satellite of an elastic job would take the licence again, and Slurm does not "
        .. "preempt satellites for a licence; submit a job that is not elastic. An administrator can name licences "
        .. "that a job takes once (job_licenses in job_submit_elastic.lua)", shown(license))
    end
  end
  local companions, gres = companions_of(request), other_gres(request)
  if companions then
    refuse("%s: satellites would share their nodes with jobs of others; leave the option out, or submit a job that is "
      .. "not elastic", shown(companions))
  elseif gres then
    refuse("%s: satellites get GPUs alone, and no other GRES; submit a job that is not elastic", shown(gres))
  elseif (said(request.pn_min_tmp_disk) or 0) > 0 then
    refuse("--tmp=%d: flexod grants satellites without regard to temporary disks; leave the option out, or submit a "
      .. "job that is not elastic", request.pn_min_tmp_disk)
  end
  local container = container_of(request)
  if container then
    refuse("%s: the satellites of an elastic job would start outside of this container; leave the option out, or "
      .. "submit a job that is not elastic", shown(container))
  end
end

local function make_token(workers, asked, batch)
  local opportunistic = asked.opportunistic and (workers.has_word and ";opportunistic=auto" or ";opportunistic") or ""
  return TOKEN_MARK .. "workers=" .. workers.text .. opportunistic .. (asked.fungible and ";fungible" or "")
    .. (asked.heterogeneous and ";heterogeneous" or "") .. (batch and ";batch=" .. batch.text or "")
    .. (asked.cohost and ";cohost" or "") .. "}"
end

local function record(job_desc, token)
  local before = job_desc.admin_comment
  job_desc.admin_comment = before and before ~= "" and before .. " " .. token or token
end

-- Whether a job says that it is a satellite. Users write comments: this proves nothing.
local function claims_to_be_satellite(job)
  return (job.comment or ""):find("^flexo%-satellite ") ~= nil
end

-- Whether a request names the spare GRES other than by node, in whatever spelling: as a whole word, in small or
-- capital letters.
local function asks_elsewhere_for_spare(job_desc)
  for _, field in ipairs({ "tres_per_task", "tres_per_job", "tres_per_socket" }) do
    if (job_desc[field] or ""):lower():find(SPARE_WORD) then
      return true
    end
  end
  return false
end

local function asks_for_spare(job_desc)
  return (job_desc.tres_per_node or ""):lower():find(SPARE_WORD) ~= nil or asks_elsewhere_for_spare(job_desc)
end

local function refuse_spare()
  refuse("the GRES %s is for satellites that flexod has granted a GPU; ask for GPUs of your own (--gpus), or for those "
    .. "that others leave idle: " .. OPPORTUNISTIC_EXAMPLE, SPARE, "1-4")
end

-- Keeps the shared partition and the spare GRES for satellites, and holds these until flexod releases them. They
-- are never requeued: a requeued job would start again without flexod.
local function check_shared(job_desc, names)
  local shared = elastic.config.shared_partition
  if not shared then
    return
  elseif #names == 1 and names[1] == shared and claims_to_be_satellite(job_desc) then
    check_one_job(job_desc, "be satellites")
    if asks_elsewhere_for_spare(job_desc) then
      refuse("a satellite asks for the GRES %s by node alone (--gres=%s:s0:1): flexod compares this with its grant", SPARE,
        SPARE)
    end
    job_desc.priority = 0
    job_desc.requeue = 0
  elseif contains(names, shared) then
    refuse("in the partition %s start satellites of opportunistic jobs alone; submit the job itself to another one: "
      .. OPPORTUNISTIC_EXAMPLE, shared, "1-4")
  elseif asks_for_spare(job_desc) then
    refuse_spare()
  end
end

-- A satellite is released by what it was submitted with: its owner changes nothing later. No other job comes to
-- its partition or its GRES by a change.
local function check_shared_change(job_desc, job_rec, names, modify_uid)
  local shared = elastic.config.shared_partition
  if not shared then
    return
  elseif job_rec.partition == shared then
    if modify_uid ~= 0 and modify_uid == job_rec.user_id then
      refuse("a satellite in %s is flexod's to release and to change; to be rid of it, cancel it", shared)
    end
  elseif contains(names, shared) then
    refuse("no job moves to the partition %s: satellites of opportunistic jobs are submitted there", shared)
  elseif asks_for_spare(job_desc) then
    refuse_spare()
  end
end

-- Refuses other jobs on borrowed servers, if bases may start there: nothing says that another job can be
-- requeued. A satellite is known by its comment. A job with a false comment gets no more than a satellite
-- gets.
local function check_stranger(job_desc, names)
  local borrowed = elastic.config.borrowed_partition
  if borrowed and contains(names, borrowed) and not claims_to_be_satellite(job_desc) then
    refuse("the servers in %s are borrowed: only satellites, --elastic-fungible and --elastic-heterogeneous jobs start "
      .. "there", borrowed)
  end
end

-- Lets the base of a fungible or heterogeneous job start on borrowed servers, if Slurm can requeue the job
-- when the servers are reclaimed.
local function open_borrowed(job_desc, names)
  local borrowed, hindrance = elastic.config.borrowed_partition, nil
  if job_desc.requeue == 0 then
    hindrance = "--no-requeue"
  elseif not job_desc.script then
    hindrance = "salloc or srun"
  end
  if hindrance and contains(names, borrowed) then
    refuse("a job on borrowed servers is requeued when they are needed back, which %s does not allow; leave %s out of "
      .. "%s", hindrance, borrowed, shown(job_desc.partition))
  elseif hindrance then
    slurm.log_user("flexo: this job does not start on borrowed servers: they are taken back by requeueing, which %s "
      .. "does not allow", hindrance)
    return
  end
  job_desc.requeue = 1 -- whatever JobRequeue in slurm.conf says for jobs that do not say
  if #names > 0 and not contains(names, borrowed) then
    job_desc.partition = table.concat(names, ",") .. "," .. borrowed
  end
end

-- Refuses options that do not go together, as spank_elastic.c does.
local function check_together(asked)
  for _, key in ipairs(asked.opportunistic and { "elastic", "fungible", "heterogeneous", "cohost" } or {}) do
    if asked[key] then
      refuse("--elastic-opportunistic and %s exclude each other: an opportunistic job has no GPUs of its own",
        key == "elastic" and "--elastic" or "--elastic-" .. key)
    end
  end
  for _, key in ipairs(asked.elastic and {} or { "batch", "fungible", "heterogeneous" }) do
    if asked[key] and not (key == "batch" and asked.opportunistic) then
      refuse("--elastic-%s needs --elastic=MIN-MAX beside it, such as --elastic=2-8", key)
    end
  end
end

-- Whether the job's account lets opportunistic jobs use the GPUs of its jobs.
local function account_agrees(job_desc)
  local account = job_desc.account or job_desc.default_account
  return account ~= nil and contains(elastic.config.cohost_accounts, account)
end

-- Tells the user of a batch script that may have forgotten `flexo run`. It may stand in what the script calls, so
-- nothing is refused.
local function hint_at_flexo_run(job_desc)
  local script = job_desc.script
  if script and not script:find("flexo", 1, true) then
    slurm.log_user("flexo: this batch script does not name flexo: start the training by `flexo run`, there or in what it "
      .. "calls; without it, the job keeps its size")
  end
end

local function check_asked(job_desc, names, asked)
  local any_type = asked.fungible or asked.heterogeneous
  local borrowed = asked.elastic and any_type and elastic.config.borrowed_partition or nil
  local share = satellite_share(names, borrowed)
  if share == "all" then
    check_stranger(job_desc, names)
    slurm.log_user("flexo: --elastic is ignored in partition %s", job_desc.partition or "(default)")
    return
  end
  if asked.elastic and account_agrees(job_desc) then
    asked.cohost = "1"
  end
  check_together(asked)
  local batch = asked.batch and parse_range("--elastic-batch", asked.batch) or nil
  if share == "some" then
    refuse("an elastic job cannot start in a partition of satellites (%s); leave it out of %s",
      table.concat(elastic.config.satellite_partitions, ", "), shown(job_desc.partition))
  end
  local workers = asked.opportunistic and opportunistic_workers(job_desc, asked)
    or asked.elastic and elastic_workers(job_desc, asked) or cohost_workers(job_desc)
  if has_satellites(workers, asked.opportunistic) then
    check_inherited(job_desc)
  end
  if (job_desc.admin_comment or ""):find(TOKEN_MARK, 1, true) then
    refuse("the job's AdminComment has a flexo token already; it is flexo's to write")
  end
  if borrowed then
    open_borrowed(job_desc, names)
  end
  record(job_desc, make_token(workers, asked, batch))
  hint_at_flexo_run(job_desc)
end

-- Runs `f`, turning a refusal into a message for the user.
local function explained(f, ...)
  local ok, problem = pcall(f, ...)
  if ok then
    return slurm.SUCCESS
  end
  if type(problem) ~= "table" or not problem.refusal then
    slurm.log_error("flexo: job_submit_elastic.lua: %s", tostring(problem))
    slurm.log_user("flexo: the check of an elastic job failed; please tell your administrator")
    return slurm.ERROR
  end
  slurm.log_user("flexo: %s", problem.refusal)
  return slurm.ERROR
end

-- Call this in slurm_job_submit. Returns slurm.SUCCESS, or slurm.ERROR after telling the user why.
function elastic.job_submit(job_desc, part_list, submit_uid)
  local plain = (job_desc.spank_job_env_size or 0) == 0 and not job_desc.comment
  if plain and not elastic.config.shared_partition and not (elastic.config.borrowed_partition and job_desc.partition)
  then
    return slurm.SUCCESS
  end
  return explained(function()
    local names = partitions_of(job_desc, part_list)
    check_shared(job_desc, names)
    local asked = not plain and asked_for(job_desc)
    if asked then
      check_asked(job_desc, names, asked)
    else
      check_stranger(job_desc, names)
    end
  end)
end

-- Call this in slurm_job_modify. An elastic job keeps its checked request, and no other job moves to borrowed
-- servers or to spare GPUs.
function elastic.job_modify(job_desc, job_rec, part_list, modify_uid)
  local token = (job_rec.admin_comment or ""):match("flexo{[^{}%s]*}")
  if not token and not elastic.config.shared_partition and not (elastic.config.borrowed_partition
    and job_desc.partition) then
    return slurm.SUCCESS
  end
  return explained(function()
    local names = job_desc.partition and partitions_of(job_desc, part_list) or {}
    check_shared_change(job_desc, job_rec, names, modify_uid)
    if not token then
      check_stranger(job_rec, names)
      return
    end
    local changed = said(job_desc.num_tasks) and "the number of tasks"
      or said(job_desc.min_nodes) and "the number of nodes"
      or (job_desc.tres_per_task or job_desc.tres_per_node or job_desc.tres_per_job or job_desc.tres_per_socket)
        and "the GPUs"
      or job_desc.array_inx and "the array"
    if changed then
      refuse("%s of an elastic job cannot be changed: the ordinary request is its minimum; cancel it and submit anew",
        changed)
    end
    local low, high = token:match("workers=(%d+)%-(%d+)")
    if low and has_satellites({ min = tonumber(low), max = tonumber(high) }, token:find(";opportunistic", 1, true)) then
      check_inherited(job_desc)
    end
    local any_type = token:find(";fungible", 1, true) or token:find(";heterogeneous", 1, true)
    local open = any_type and elastic.config.borrowed_partition or nil
    if satellite_share(names, open) ~= "none" then
      refuse("an elastic job cannot move to a partition of satellites (%s)",
        table.concat(elastic.config.satellite_partitions, ", "))
    elseif open and contains(names, open) then
      job_desc.requeue = 1
    end
  end)
end

return elastic
