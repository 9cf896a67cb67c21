"""From a cluster to the files that start it: text in, text out; who writes them is the command.

Every target gets the gateway, too, with the same pools as the plan, and a README with what to copy and to start. No secret
stands in any of them: keys are named, and their values are put into a file or a Secret that is not written here.
"""
