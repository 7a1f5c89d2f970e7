ALTER TABLE allocations ADD COLUMN job_id BIGINT NOT NULL DEFAULT 0;

-- GPUs of the run by node: `n3=0,1;n[4-5]=0`. Empty if Slurm did not report their indices.
ALTER TABLE allocations ADD COLUMN gpu_places TEXT NOT NULL DEFAULT '';
