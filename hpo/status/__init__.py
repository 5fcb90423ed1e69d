"""Status of a campaign, from its journal alone: facts, timeline and view."""

from hydragnn.hpo.status.facts import CampaignStatus, Follower, campaign_status
