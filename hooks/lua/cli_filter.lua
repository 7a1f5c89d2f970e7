-- cli_filter.lua for a site that has none, with CliFilterPlugins=lua in slurm.conf. It lies beside slurm.conf on every host from which jobs
-- are submitted, and runs as the user who submits. A site that has one adds the line with `dofile` and the one with `mesh.` to its own.

local _, mesh = pcall(dofile, "/etc/slurm-mesh/hooks/mesh.lua")

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  pcall(function() mesh.post_submit(job_id, step_id) end)
  return slurm.SUCCESS
end
