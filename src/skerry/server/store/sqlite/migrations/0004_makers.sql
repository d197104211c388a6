-- Who made a project and a sandbox. Of older projects it is known where there is one owner; of older sandboxes it is not.
ALTER TABLE projects ADD COLUMN made_by TEXT REFERENCES users ON DELETE SET NULL;
UPDATE projects SET made_by = (SELECT user_id FROM members WHERE project_id = projects.id AND role = 'owner')
    WHERE personal_of IS NULL
    AND (SELECT count(*) FROM members WHERE project_id = projects.id AND role = 'owner') = 1;
ALTER TABLE belongings ADD COLUMN made_by TEXT;
