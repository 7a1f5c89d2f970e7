-- job_submit.lua for a site that has none, with JobSubmitPlugins=lua in slurm.conf. It lies beside slurm.conf on every SlurmctldHost.
-- A site that has one adds the line with `dofile` and the two with `mesh.` to its own.
-- Every call is guarded: slurmctld 26.05 refuses the job if this file raises an error.

local _, mesh = pcall(dofile, "/etc/slurm-mesh/hooks/mesh.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
  pcall(function() mesh.submitted(submit_uid) end)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  pcall(function() mesh.modified(job_rec, modify_uid) end)
  return slurm.SUCCESS
end

return slurm.SUCCESS
